//! Collectors that take batches over HTTP, as several loggers configure them.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_plugin::{Invalid, Service, ServiceOptions};
use weir_telemetry::reports::{Check, Destination, Endpoints, Post};
use weir_wire::name::FieldName;

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
