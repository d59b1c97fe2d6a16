//! The configuration model: what a gateway is told to do, read from the files people already have.
//!
//! [`load()`] turns a rules file (APISIX's resource model, YAML or JSON) into a [`Document`] of typed, defaulted and
//! checked resources, or says everything that is wrong with it, each fault with its position. [`Settings`] is the
//! gateway's own configuration: listeners, limits, timeouts, logs.
//!
//! The way of a file: bytes → environment substitution ([`mod@env`]) → positioned tree ([`node`]) → what other tool it may
//! belong to → sections and items → features that are not supported yet ([`unsupported`]) → schema check
//! ([`schema`]) → typed resources ([`resource`]) → cross-field rules, plugins and references.
//!
//! This crate knows nothing of sockets and nothing of what a plugin's configuration means: it asks a
//! [`PluginCatalog`].

pub mod catalog;
mod code;
pub mod diagnostic;
pub mod env;
pub mod file;
pub mod load;
pub mod model;
pub mod node;
pub mod reference;
pub mod resource;
pub mod schema;
pub mod secret;
pub mod settings;
mod shared;
pub mod unsupported;

pub use catalog::{PluginCatalog, Scope};
pub use code::Code;
pub use diagnostic::{Diagnostic, Hint, Severity};
pub use load::{Changed, Dropped, InvalidItems, LoadOptions, Loaded, load};
pub use model::{ItemChange, Items, Listed, Model, Place, Section};
pub use node::{Key, Kind, Mark, Node};
pub use resource::*;
pub use secret::{NoSecret, NoSecrets, Revealed, SecretSource, is_reference};
pub use settings::{RouterMode, Settings};
pub use shared::{SharedMap, SharedSet};
pub use weir_expr::{ExprFault, metered};
