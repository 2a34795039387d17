"""Exact numerics of the Dirichlet and of its losses, on a CPU and on any device of torch.

| module | holds |
| --- | --- |
| `gamma` | the gamma function's family, without cancellation |
| `quantities` | what the closed forms of a Dirichlet share |
| `float32` | the same in few operations, accurate to float32 |
| `forms` | closed forms and evidence functions, with their derivatives |
| `dissonance` | dissonance of belief masses |
| `autograd` | functions whose gradients are formulas, in chunks of rows |
| `functions` | closed forms, divergences and moments as functions of alpha |
| `covariance` | shrinkage where samples are few |
| `elementwise` | values and slopes of small batches in one pass, in NumPy |
| `student` | density, tails and quantiles of the Student-t distribution |
| `spec` | what a loss computes |
| `torch_backend` | a loss and its gradient in one pass, in torch |
| `tracing` | eager mode and torch.compile |
"""

__all__: list[str] = []
