//! The common parts of plugins that are a name alone: the gateway does their work itself, or nothing is left to do.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Compiled, Plugin};

/// An empty object: there are no settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {}

/// An instance, which does nothing on a route.
struct Nothing;

impl Plugin for Nothing {}

/// An instance that does nothing.
pub(crate) fn nothing() -> Compiled {
    Compiled::ready(Nothing)
}
