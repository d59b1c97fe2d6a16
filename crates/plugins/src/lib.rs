//! The plugins of the gateway: one file each, one line each in [`registry`].
//!
//! | group | plugins |
//! |---|---|
//! | `auth` | `basic-auth`, `key-auth` |
//! | `traffic` | `limit-count` |
//! | `transform` | `proxy-rewrite`, `response-rewrite` |
//! | `requests` | `request-validation` |
//! | `general` | `mocking` |
//! | `observe` | `prometheus` |
//!
//! A plugin is built once for each place in a configuration where it stands; everything that depends on the
//! configuration alone is worked out then. Its hooks run on the path of requests and do not allocate in steady state.

mod auth;
mod fields;
mod general;
mod observe;
mod query;
pub mod reference;
pub mod registry;
mod requests;
mod traffic;
mod transform;

pub use registry::definitions;
pub use traffic::limit_keys;
