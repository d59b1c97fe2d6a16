//! People's own Lua: functions and modules that plugins run, by LuaJIT.
//!
//! ```text
//!  text ─► Script::check (control thread: it compiles, it runs once) ─► configuration in force
//!            Script::run ─► this worker's Engine ─► functions compiled once ─► a call with a budget
//!                                │ waits: a coroutine yields
//!                                └──► Flow::Suspend, Flow::AwaitBody ─► Script::wait ─► resumed
//! ```
//!
//! Each worker has one interpreter ([`engine`]), made when the first script is called. It runs with the JIT compiler
//! off, since compiled loops call no hook, and a hook that counts instructions is what ends a script that loops. While a
//! call runs, the exchange is lent to it ([`weir_plugin::lend`]): functions of [`api`] find it in its place and need no
//! reference. What scripts see (`ngx`, `core`, `kong`, …) is Lua in `lua/`, over the functions of [`api`].

mod addresses;
mod api;
mod before;
mod call;
mod condition;
mod context;
mod engine;
mod expression;
mod hook;
mod module;
mod options;
mod pattern;
mod plugin;
mod script;
mod services;
mod wait;

pub use before::Before;
pub use condition::Function as ConditionFunction;
pub use expression::{EvalError, Expression, Lookup};
pub use hook::{Hook, Identify, Identity};
pub use module::Module;
pub use options::{Allowed, Options, configure};
pub use script::{Form, Script, ScriptError};
pub use services::Services;
