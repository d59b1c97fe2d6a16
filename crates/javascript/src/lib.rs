//! Scripts in JavaScript, run by QuickJS on threads of their own, with budgets of time and memory.
//!
//! ```text
//! worker ── Call ──► queue ──► thread: an interpreter for each program ── Outcome ──► worker
//!   ▲                                      │
//!   └────────── HostRequest ───────────────┘  (a script asks for a request or a session, and waits)
//! ```
//!
//! QuickJS and not an engine in Rust: it has limits of memory, of stack and of time, takes little memory for each program, and is
//! compiled within seconds.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the bans guard the path of a request; nothing here is on it"
)]

mod engine;
mod machine;
mod program;

pub use engine::{Call, Engine, HostRequest, Question};
pub use machine::{Entry, Fault};
pub use program::{Limits, Program, Script};
