//! The places to which identity providers send users back.

use weir_plugin::{Invalid, RequestCx};

use super::openid_connect::provider::split_origin;

/// The place to which users come back.
#[derive(Debug)]
pub(super) struct Callback {
    pub(super) path: Vec<u8>,
    /// The whole URL; `None`: the host of the request is added to the path.
    pub(super) whole: Option<String>,
}

impl Callback {
    /// Reads the place in a field of a configuration.
    pub(super) fn new(field: &'static str, uri: &str) -> Result<Self, Invalid> {
        let fault = || Invalid::new(field, "expected http://HOST/PATH, https://HOST/PATH or a path");
        if !uri.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(fault());
        }
        let (path, whole) = match split_origin(uri) {
            Some((_, path)) => (path.split(['?', '#']).next().unwrap_or_default(), Some(uri.to_owned())),
            None if uri.starts_with('/') && !uri.contains(['?', '#']) => (uri, None),
            None => return Err(fault()),
        };
        Ok(Self { path: if path.is_empty() { "/" } else { path }.as_bytes().to_vec(), whole })
    }

    /// The whole URL.
    pub(super) fn url(&self, cx: &RequestCx<'_>) -> String {
        match &self.whole {
            Some(url) => url.clone(),
            None => {
                let scheme = if cx.client().https { "https" } else { "http" };
                let host = String::from_utf8_lossy(cx.request().host_port());
                format!("{scheme}://{host}{}", String::from_utf8_lossy(&self.path))
            }
        }
    }
}
