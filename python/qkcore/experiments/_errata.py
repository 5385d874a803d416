"""Errata that the experiments show, in a sentence each; docs/errata.md has the whole list with numbers."""

from __future__ import annotations

ERRATA = {
    1: "DAC 4.1 says that a generic non-constant h gives a NESS over a symmetric kernel with equal "
    "marginals. It cannot: the bridge is unique and its transpose solves the same problem, so that the "
    "coupling is symmetric and every current vanishes. A NESS needs an asymmetric kernel.",
    2: "DAC D.2 calls q_i + k_j − C_ij − C_ji symmetric. It is not unless |Q_i|² − |K_i|² is the same "
    "for all i. Run as printed and as the mean with its transpose.",
    3: "DAC D.2's cosine schedule lacks Nichol and Dhariwal's factor ½ in the angle: as printed ᾱ "
    "turns back up after half of the steps and the variances become negative. Run as printed (with "
    "negative variances set to 0: otherwise ᾱ exceeds 1) and corrected.",
    4: "DAC section 5 reports a Chamfer distance, D.2 an MMD². Both are reported.",
    11: "DAC D.1: the circle's kernels have singular values in exact pairs, so that an even rank cuts "
    "a pair and the truncation is a free choice; so does rank 17 in the trefoil's diffusion kernel. Such "
    "ranks are reported as ranges over the choice.",
    38: "DAC 4.3 derives currents from K⁺ being asymmetric. It is so for every W, but when W is "
    "symmetric it is symmetric up to a column term, and attention is in equilibrium. Currents need an "
    "asymmetric W.",
}
