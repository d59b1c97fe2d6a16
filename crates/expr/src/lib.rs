//! Variables, templates and expressions: the three ways in which a configuration refers to a request.
//!
//! All three are compiled once, when a configuration is loaded. On the path of a request nothing is looked up by name
//! and nothing is allocated: a [`Variable`] is an enum, a [`Template`] is a list of literals and variables, and an
//! [`Expr`] is a tree of tests.
//!
//! | in the configuration | here |
//! |---|---|
//! | `remote_addr`, `http_user_agent`, `arg_id`, … | [`Variable`], read through a [`Source`] as a [`Value`] |
//! | `"$remote_addr/${arg_id}"` | [`Template`] |
//! | `[["arg_id", ">", 10], ["http_x_env", "~~", "^prod"]]` | [`Expr`] |
//!
//! The names are those of nginx and Apache APISIX. An unknown name is an error with the nearest known name, never a
//! variable that is silently empty.

mod body_path;
mod body_reading;
mod budget;
mod expr;
mod json_text;
mod number;
mod pattern;
mod pcre;
mod template;
mod value;
mod variable;

pub use crate::body_path::{BodyPath, PathStep};
pub use crate::body_reading::finds_body_reading;
pub use crate::budget::{TooLarge, counted, metered, spend, spent};
pub use crate::expr::{Condition, Expr, ExprError, ExprFault, take_undecided};
pub use crate::json_text::{JsonPart, JsonParts, unescaped};
pub use crate::pattern::{RegexOptions, compile_regex, spend_for_regex};
pub use crate::template::{Piece, Template, TemplateError};
pub use crate::value::{Source, Value};
pub use crate::variable::{Variable, VariableError};
