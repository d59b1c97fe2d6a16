//! Kong's family: declarative configurations (`kong.yml`, decK's files) as a front end.
//!
//! The way of a document: placeholders from the environment (`placeholders`) → entities, nested and top-level, with
//! their references resolved (`document`) → items of the model (`lower`). Routes get the rank by which Kong orders them
//! (`rank`). What Kong answers and tells upstreams is the work of plugins that every configuration gets
//! (`weir_plugins::kong`), so that nothing else on the path of a request knows the family.

pub mod conf;
mod convert;
mod declared;
mod document;
mod front_end;
mod id;
mod lower;
mod manifests;
mod placeholders;
mod rank;
mod stored;
mod vaults;

pub use convert::{Converted, convert};
pub use declared::{Declaration, Declared, declaration};
pub use front_end::{FAMILY, Kong, KongWithoutUnsupported};
pub use manifests::{Manifests, is_manifests};
pub use rank::Conditions;
pub use stored::Stored;
