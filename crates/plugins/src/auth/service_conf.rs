//! The part of a configuration that says how a service is connected to, which several plugins have.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::ServiceOptions;

/// Connections to a service that is asked about requests.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ServiceConf {
    /// Verifies the certificate of the service, by an authority of `tls.trusted_certificate` and for the name in its URI.
    #[serde(default = "yes")]
    pub(crate) ssl_verify: bool,
    /// Keeps connections to the service for further requests.
    #[serde(default = "yes")]
    keepalive: bool,
    /// Milliseconds for which an idle connection is kept.
    #[serde(default = "minute")]
    #[schemars(range(min = 1000))]
    keepalive_timeout: u64,
    /// Idle connections to the service that each worker keeps. Above that they are closed within a second.
    #[serde(default = "five")]
    #[schemars(range(min = 1))]
    keepalive_pool: u32,
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn minute() -> u64 {
    60_000
}

fn five() -> u32 {
    5
}

impl ServiceConf {
    /// The options of connections, with this limit for an answer.
    pub(crate) fn options(&self, timeout: Duration) -> ServiceOptions {
        ServiceOptions {
            verify: self.ssl_verify,
            keepalive: self.keepalive.then_some(self.keepalive_pool),
            idle: Duration::from_millis(self.keepalive_timeout),
            timeout,
        }
    }
}
