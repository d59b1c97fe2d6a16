//! The configuration model: the resources and settings of a gateway, read from the files people already have.
//!
//! [`load()`] turns a rules file (APISIX's resource model, YAML or JSON) into a [`Document`] of typed, defaulted and
//! checked resources, or reports every fault in it with its position. [`Settings`] is the gateway's own configuration:
//! listeners, limits, timeouts, logs.
//!
//! The way of a file: bytes → environment substitution ([`mod@env`]) → positioned tree ([`node`]) → the front end of its
//! family ([`front_end`]), or the tool that it belongs to → sections and items → features that are not supported yet ([`unsupported`]) → schema check
//! ([`schema`]) → typed resources ([`resource`]) → cross-field rules, plugins and references.
//!
//! This crate opens no sockets and does not interpret configurations of plugins: a [`PluginCatalog`] checks them.

pub mod catalog;
mod code;
pub mod diagnostic;
pub mod env;
pub mod file;
pub mod front_end;
pub mod kind;
pub mod load;
pub mod model;
pub mod node;
pub mod nodes;
pub mod reference;
pub mod resource;
pub mod schema;
pub mod secret;
pub mod settings;
mod shared;
pub mod unsupported;

pub use catalog::{Checked, CompiledConf, CompiledConfs, PluginCatalog, Scope};
pub use code::Code;
pub use diagnostic::{Diagnostic, Hint, Severity};
pub use front_end::{APISIX, Apisix, Entity, Family, FrontEnd, Lowered, Matching, OnRoutes};
pub use kind::{ResourceKey, ResourceKind};
pub use load::{Changed, Dropped, InvalidItems, LoadOptions, Loaded, load};
pub use model::{ItemChange, Items, Listed, Model};
pub use node::{Key, Kind, Mark, Node};
/// Messages by their descriptions, as [`Proto::compile`] gives them.
pub use protox::prost_reflect;
pub use resource::*;
pub use secret::{NoSecret, NoSecrets, Revealed, SecretSource, is_reference};
pub use settings::{RouterMode, Settings};
pub use shared::{SharedMap, SharedSet};
pub use weir_expr::{ExprFault, metered};
