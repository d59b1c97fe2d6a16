//! Programs that measurements, tests and the demo stand on: `relay`, the byte relay that marks the floor, and
//! `origin`, a small HTTP/1.1 server to put behind the gateway. The comparisons themselves are `quick.py` and
//! `memory.py` beside this crate.
