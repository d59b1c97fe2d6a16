//! Programs for measurements, tests and the demo: `relay`, the byte relay that marks the lower bound of costs, and
//! `origin`, a small HTTP/1.1 server behind the gateway. The comparisons are `quick.py` and `memory.py` beside this
//! crate.
