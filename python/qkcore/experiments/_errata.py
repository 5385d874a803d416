"""Short descriptions of the errata that the experiments show; docs/errata.md has the whole list."""

from __future__ import annotations

ERRATA = {
    1: "DAC 4.1 says that a generic non-constant h gives a NESS over a symmetric kernel with equal "
    "marginals. It cannot: the bridge is unique and its transpose solves the same problem, so that the "
    "coupling is symmetric and every current vanishes. A NESS needs an asymmetric kernel.",
    2: "DAC D.2 calls q_i + k_j − C_ij − C_ji symmetric. It is not unless |Q_i|² − |K_i|² is the same "
    "for all i. Both variants are run: as printed, and as the mean of the matrix and its transpose.",
    3: "DAC D.2's cosine schedule lacks Nichol and Dhariwal's factor ½ in the angle: as printed ᾱ "
    "rises again after half of the steps and the variances become negative. Both variants are run: as "
    "printed (with negative variances set to 0, because ᾱ would exceed 1 otherwise) and corrected.",
    4: "DAC section 5 reports a Chamfer distance, but D.2 an MMD². Both are measured here.",
    5: "TPDE 4.15 prints C with AΣAᵀ; lemma 4.14's AᵀΣA is the one that matches simulation.",
    6: "ISB's objective lacks a ½ on the cost: a step of ε/2 ∇log ρ needs the kernel exp(−|x−y|²/2ε); as "
    "printed every flow runs at half its speed. Theorem 2's K ε C(ε) cannot hold with theorem 1's C = O(ε²) "
    "for normal laws: one bridge step and one Euler step differ by ε²/8s³. With √C(ε) it holds.",
    7: "EOT 2 to 3, H.1, L: the factor of an initial error in theorem 3.1 is e^Γ, not e^Γ − 1 (7g); lower "
    "temperature freezes rows, the opposite of the last sentences of L.2 (7d); a small Frobenius norm "
    "of the mobility does not justify leaving early, because spread-out rows have one too (7h).",
    8: "TPDE 4.3: the second term of the L2 covariance flow is the transpose of the first; as printed "
    "dΣ/dt is not symmetric.",
    10: "MTA 19 (second inequality), 23 and 25 cannot hold as printed: for G = 1 the factor is 0, but the "
    "map is the identity. (‖G‖_∞ + ‖G‖_{∞,Lip} diam)/ε(G) does hold. Proposition 28 lacks a factor N, and "
    "theorem 29, which uses it, fails too: for cubes in 44 dimensions and more.",
    11: "DAC D.1: the circle's kernels have singular values in exact pairs, so that an even rank cuts "
    "a pair and the truncation is not unique; rank 17 of the trefoil's diffusion kernel cuts a pair too. "
    "For such ranks the range over all choices is reported.",
    25: "TPDE 4.5 observes convergence to 0 for A + Aᵀ ≺ 0 independently of V. It holds for symmetric "
    "positive definite V, since Tr(V⁻¹Σ) then falls; V drawn as the text says, with independent normal "
    "entries, lets most trajectories blow up.",
    26: "TPDE 4.12: L2 attention cannot blow up when K is invertible. With a singular K it can.",
    27: "TPDE 4.1, figure 3: the rank of the limit is bounded by dim ker A, ⌈d/2⌉ for A of rank ⌊d/2⌋, not "
    "by rk A.",
    28: "TPDE 5.4: the interaction energy needs A = Aᵀ to fall along softmax flows.",
    30: "EOT 4.2 calls dX = u dt + σ dW the reverse SDE, u being the probability flow's velocity. Noise on "
    "top of u spreads the law; the reverse SDE's drift is F − a∇log p − ∇·a, which is what is run.",
    31: "EOT 5.1 and 5.2 say that R = 0 if and only if the path is a Schrödinger bridge. A bridge has "
    "R = 0, but so has every path whose velocities are gradients, hence every exact probability "
    "flow with a constant tensor.",
    33: "EOT eq 23 with α = 0 is not a bound: softmax rows of tail mass δ move by up to twice as much. The "
    "sharp form is used.",
    34: "EOT expects the curvature gap to fall with temperature. It need not: rows that are locked to one "
    "key differ more from each other when the temperature rises.",
    38: "DAC 4.3 derives currents from the asymmetry of K⁺. K⁺ is asymmetric for every W; but if W is "
    "symmetric, K⁺ is symmetric up to a column term, and attention is in equilibrium. Currents need an "
    "asymmetric W.",
    39: "TPDE figures 1 (c), 1 (d), 5 (c), 6 (c): in the published code the multi-head field of 1 (c) has "
    "one empty head (two heads with A of rank 1 give a line, not a plane), that of 6 (c) is run with one "
    "head, which makes it plain softmax, and 1 (d) and 5 (c) are both drawn from the L2 run.",
    40: "TPDE figures 3, 8: the published procedure counts eigenvalues above 0.1, although starts "
    "already have smaller ones that stay; its steps leave the cone, and negative eigenvalues are then set "
    "to 1e-14; runs that do not stop are replaced by new draws, and ranks above ⌈d/2⌉ would be left out.",
    41: "DAC section 5, D.1, D.2 compare attention and diffusion kernels at one β. Attention at β is "
    "diffusion at β/2 with a key bias. So the attention kernel is wider, and wider kernels are "
    "compressed better. At equal width both bridges are the same, and diffusion is compressed better.",
}
