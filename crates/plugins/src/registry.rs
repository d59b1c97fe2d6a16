//! The list of all plugins. There is no other.

use weir_plugin::Definition;

use crate::auth::basic_auth::BasicAuth;
use crate::auth::key_auth::KeyAuth;
use crate::general::mocking::Mocking;
use crate::observe::prometheus::Prometheus;
use crate::requests::request_validation::RequestValidation;
use crate::traffic::limit_count::LimitCount;
use crate::transform::proxy_rewrite::ProxyRewrite;
use crate::transform::response_rewrite::ResponseRewrite;

/// Every plugin, in the order of names.
#[must_use]
pub fn definitions() -> &'static [&'static dyn Definition] {
    &[&BasicAuth, &KeyAuth, &LimitCount, &Mocking, &Prometheus, &ProxyRewrite, &RequestValidation, &ResponseRewrite]
}
