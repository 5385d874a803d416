"""Uses all parts of the compiled code a little, and is small enough for valgrind (make valgrind)."""

import numpy as np

import qkcore as qk

rng = np.random.default_rng(0)
for dtype in (np.float64, np.float32):
    for n, m, d in ((1, 1, 1), (9, 17, 3), (33, 31, 5)):
        X, Y = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(m, d)).astype(dtype)
        s = qk.scores.distance(X, Y, beta=0.3) + qk.scores.dot(X, Y)
        A = qk.softmax(s.masked(rng.random((n, m)) < 0.9).causal(m))
        assert np.isfinite(A @ Y).all() and np.isfinite(X.T @ A).all()
        assert np.isfinite(s.logsumexp(0)).all() and np.isfinite(qk.softmax(s).entropy()).all()
        mu, nu = np.full(n, 1 / n, dtype), np.full(m, 1 / m, dtype)
        for memory in (0, 1e9):
            b = qk.bridge(qk.scores.distance(X, Y, beta=0.3), mu, nu, tol=1e-3, max_memory=memory)
            assert b.converged, str(b)
        assert np.isfinite(qk.isb.barycentric(X, 2.0, tol=1e-3).values).all()
        field = qk.AttentionField("softmax", Q=np.eye(d), K=np.eye(d), V=-np.eye(d))
        assert qk.flow(field, X, (0.0, 0.1), "rk4", n_steps=2).success
        cov = np.eye(d, dtype=dtype)
        qk.gaussian.flow("l2", None, cov, (0, 0.1), Q=cov, K=cov, V=cov, n_steps=2)
        assert np.isfinite(qk.simplex.Mobility(nu).apply(nu)).all()
        W = rng.normal(size=(d, d)).astype(dtype)
        assert np.isfinite(qk.magnetic.operator(X, beta=0.3, W=W) @ X).all()
print("smoke: all fine")
