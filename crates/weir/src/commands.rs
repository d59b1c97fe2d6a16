//! The commands of `weir`, one a file.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod explain;
pub(crate) mod ready;
pub(crate) mod run;
pub(crate) mod store;
