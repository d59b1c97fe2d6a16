//! Questions to a 3scale backend (Service Management API).

use std::sync::LazyLock;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Callout, Invalid, Service, ServiceOptions, ServiceUri};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::credentials::Version;
use super::usage::encode;

/// The backend of a service.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Its URL.
    pub(super) endpoint: String,
    /// The `Host` of questions; empty: that of the URL.
    pub(super) host: String,
    /// True if its certificate is verified.
    pub(super) verify: Option<bool>,
}

/// Time that a question may take, connecting included.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// A backend, compiled, before its upstream is built.
#[derive(Debug)]
pub(super) struct Draft {
    service: ServiceUri,
    host: String,
    /// The URL without a slash at its end.
    pub(super) endpoint: String,
    pub(super) verifies: bool,
    /// Arguments that identify the gateway and the service.
    pub(super) identity: String,
    is_oauth: bool,
}

/// A backend.
#[derive(Debug)]
pub(super) struct Backend {
    service: Service,
    /// Path and query of questions up to what each request adds.
    authrep: Box<[u8]>,
    authorize: Box<[u8]>,
}

/// The question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// May a request pass, whose usage is counted if it may.
    AuthRep,
    /// May a request pass, of which nothing is counted.
    Authorize,
}

static OPTIONS: LazyLock<FieldName> = LazyLock::new(|| FieldName::constant("3scale-options"));
static USER_AGENT: LazyLock<FieldName> = LazyLock::new(|| FieldName::constant("User-Agent"));

impl Draft {
    /// Compiles a backend; `field` is its place in the configuration. `secret` has the name of an argument and its value.
    pub(super) fn compile(
        conf: Conf,
        id: &str,
        secret: (&str, &str),
        version: Version,
        field: &'static str,
    ) -> Result<Self, Invalid> {
        let endpoint = conf.endpoint.trim_end_matches('/').to_owned();
        let verifies = conf.verify.unwrap_or(true);
        let options = ServiceOptions { verify: verifies, timeout: TIMEOUT, ..ServiceOptions::default() };
        let service = Service::parse(field, &endpoint, options)?;
        let mut identity = Vec::new();
        let (name, value) = secret;
        for (name, value) in [(name, value), ("service_id", id)] {
            if name.is_empty() {
                continue;
            }
            if !identity.is_empty() {
                identity.push(b'&');
            }
            encode(name.as_bytes(), &mut identity);
            identity.push(b'=');
            encode(value.as_bytes(), &mut identity);
        }
        let identity = String::from_utf8_lossy(&identity).into_owned();
        Ok(Self { service, host: conf.host, endpoint, verifies, identity, is_oauth: version == Version::Token })
    }

    pub(super) fn build(self, build: &weir_plugin::BuildCx<'_>) -> Result<Backend, Invalid> {
        let service = self.service.build(build)?;
        let service = if self.host.is_empty() { service } else { service.with_host(&self.host) };
        let base = String::from_utf8_lossy(service.target()).into_owned();
        let base = base.trim_end_matches('/');
        let prefix = if self.is_oauth { "oauth_" } else { "" };
        let target = |name: &str| {
            format!("{base}/transactions/{prefix}{name}.xml?{}&", self.identity).into_bytes().into_boxed_slice()
        };
        Ok(Backend { authrep: target("authrep"), authorize: target("authorize"), service })
    }

    /// Fields of reports.
    pub(super) fn report_fields(&self) -> Vec<(String, String)> {
        let mut fields = vec![("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned())];
        if !self.host.is_empty() {
            fields.push(("Host".to_owned(), self.host.clone()));
        }
        fields
    }
}

impl Backend {
    /// A question; `arguments` are those of the request.
    pub(super) fn question(&self, ask: Ask, arguments: &[u8]) -> Callout {
        let mut target = match ask {
            Ask::AuthRep => self.authrep.to_vec(),
            Ask::Authorize => self.authorize.to_vec(),
        };
        target.extend_from_slice(arguments);
        let mut question = self.service.callout_to(Method::Get, &target);
        question.set_timeout(TIMEOUT);
        question.add_field(&OPTIONS, b"rejection_reason_header=1&limit_headers=1&no_body=1");
        question.add_field(&USER_AGENT, b"weir");
        question
    }
}
