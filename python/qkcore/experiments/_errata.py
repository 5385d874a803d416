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
    6: "ISB's objective lacks a ½ on the cost: a step of ε/2 ∇log ρ needs the kernel exp(−|x−y|²/2ε); as "
    "printed every flow runs at half its speed. Theorem 2's K ε C(ε) cannot hold with theorem 1's C = O(ε²) "
    "for normal laws: one bridge step and one Euler step differ by ε²/8s³. With √C(ε) it holds.",
    7: "EOT 2 to 3, H.1, L: the factor of an initial error in theorem 3.1 is e^Γ, not e^Γ − 1 (7g); lower "
    "temperature freezes rows, the opposite of what L.2 ends with (7d); a small Frobenius norm of the "
    "mobility is no licence to leave early, as spread-out rows have it too (7h).",
    10: "MTA 19 (second inequality), 23 and 25 cannot hold as printed: for G = 1 the factor is 0 and the map "
    "the identity. (‖G‖_∞ + ‖G‖_{∞,Lip} diam)/ε(G) does hold. Proposition 28 lacks a factor N, and theorem "
    "29 falls with it, for cubes in 44 dimensions and more.",
    11: "DAC D.1: the circle's kernels have singular values in exact pairs, so that an even rank cuts "
    "a pair and the truncation is a free choice; so does rank 17 in the trefoil's diffusion kernel. Such "
    "ranks are reported as ranges over the choice.",
    33: "EOT eq 23 with α = 0 fails by up to a factor of two for small changes: two tokens reach 4δ(1−δ)ε in "
    "L1. The constant is right for the total variation, half of the L1 norm.",
    38: "DAC 4.3 derives currents from K⁺ being asymmetric. It is so for every W, but when W is "
    "symmetric it is symmetric up to a column term, and attention is in equilibrium. Currents need an "
    "asymmetric W.",
}
