//! Collectors that take batches over HTTP, as several loggers configure them.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Invalid, Service, ServiceOptions};
use weir_telemetry::reports::{Check, Destination, Endpoints, Post};
use weir_wire::name::FieldName;

/// Servers that batches are sent to; `SECONDS` is the limit of a request unless it is given.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ServersConf<const SECONDS: u64> {
    /// A server, such as `http://127.0.0.1:9200`; older form of `endpoint_addrs`.
    endpoint_addr: Option<String>,
    /// Servers: each batch goes to one of them.
    #[schemars(length(min = 1))]
    endpoint_addrs: Option<Vec<String>>,
    /// Seconds for a request.
    #[serde(default = "seconds::<SECONDS>")]
    #[schemars(range(min = 1))]
    timeout: u64,
    /// Verifies the certificates of the servers, by an authority of `tls.trusted_certificate`.
    #[serde(default = "yes")]
    ssl_verify: bool,
}

fn yes() -> bool {
    true
}

fn seconds<const SECONDS: u64>() -> u64 {
    SECONDS
}

/// Servers whose addresses are known to be some.
#[derive(Debug)]
pub(crate) struct Servers {
    uris: Vec<String>,
    timeout: Duration,
    verify: bool,
}

impl<const SECONDS: u64> ServersConf<SECONDS> {
    /// The servers, with a path behind each address.
    pub(crate) fn servers(self, path: &str, cx: &CompileCx<'_>) -> Option<Servers> {
        let uris = match (&self.endpoint_addr, &self.endpoint_addrs) {
            (None, Some(addresses)) => cx.ok(collectors("endpoint_addrs", addresses, path))?,
            (Some(address), None) => vec![cx.ok(collector("endpoint_addr", address, path))?],
            _ => {
                cx.say([Invalid::new("endpoint_addrs", "expected either endpoint_addrs or endpoint_addr")]);
                return None;
            }
        };
        Some(Servers { uris, timeout: Duration::from_secs(self.timeout), verify: self.ssl_verify })
    }
}

impl Servers {
    /// The destination of batches, with these fields of requests.
    pub(crate) fn destination(self, fields: &[(String, String)], check: Check) -> Destination {
        endpoints(self.uris, fields, self.timeout, self.verify, check)
    }
}

/// The URIs of collectors, which stand in a list in `field`, with a path behind each.
///
/// # Errors
/// One of the addresses is none.
pub(crate) fn collectors(field: &'static str, addresses: &[String], path: &str) -> Result<Vec<String>, Invalid> {
    let in_list = |at| move |fault: Invalid| Invalid { path: format!("{field}[{at}]"), ..fault };
    let uri = |(at, address): (usize, &String)| collector(field, address, path).map_err(in_list(at));
    addresses.iter().enumerate().map(uri).collect()
}

/// The URI of a collector, which stands in `field`, with a path behind it.
///
/// # Errors
/// The address is none.
pub(crate) fn collector(field: &'static str, address: &str, path: &str) -> Result<String, Invalid> {
    let uri = format!("{}{path}", address.trim_end_matches('/'));
    Service::parse(field, &uri, ServiceOptions::default()).map(|_| uri)
}

/// A destination of these collectors.
pub(crate) fn endpoints(
    uris: Vec<String>,
    fields: &[(String, String)],
    timeout: Duration,
    verify: bool,
    check: Check,
) -> Destination {
    let post = |uri| Post { uri, fields: fields.to_vec(), timeout, verify };
    Destination::Endpoints(Endpoints { posts: uris.into_iter().map(post).collect(), check })
}

/// Checks fields of requests that a configuration names.
///
/// # Errors
/// A name or a value that cannot be one.
pub(crate) fn check_headers(field: &str, headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
    let is_field = |(name, value): (&String, &String)| {
        FieldName::new(name).is_some() && value.bytes().all(weir_wire::is_field_byte)
    };
    match headers.iter().find(|field| !is_field(*field)) {
        Some((name, _)) => {
            Err(Invalid::new(format!("{field}.{name}"), "expected the name of a header, and a value without line ends"))
        }
        None => Ok(()),
    }
}

/// The value of `Authorization` for a name and a password (RFC 7617).
pub(crate) fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))
}
