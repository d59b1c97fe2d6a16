//! HTTP clients for threads that may block: reports to collectors, questions to Vault.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Clients with connections of their own, each made when it is first needed.
pub(crate) struct Agents {
    /// The setting `tls.trusted_certificate`.
    trusted: String,
    /// Time limit of a request that has none of its own.
    timeout: Option<Duration>,
    plain: OnceLock<Agent>,
    verifying: OnceLock<Result<Agent, String>>,
    trusting: OnceLock<Agent>,
}

impl Agents {
    pub(crate) fn new(trusted: &str, timeout: Option<Duration>) -> Self {
        let (plain, verifying, trusting) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { trusted: trusted.to_owned(), timeout, plain, verifying, trusting }
    }

    /// The client for a URI. With `verify`, the certificate of a server has to be one of a trusted authority.
    ///
    /// # Errors
    /// The trusted certificates cannot be read.
    pub(crate) fn of(&self, uri: &str, verify: bool) -> Result<&Agent, String> {
        let tls = || TlsConfig::builder().unversioned_rustls_crypto_provider(Arc::clone(weir_proxy::crypto_provider()));
        if !uri.starts_with("https:") {
            return Ok(self.plain.get_or_init(|| self.agent(None)));
        }
        if !verify {
            return Ok(self.trusting.get_or_init(|| self.agent(Some(tls().disable_verification(true).build()))));
        }
        let agent = self.verifying.get_or_init(|| {
            let trusted = weir_proxy::trusted_certificates(&self.trusted)?;
            let roots: Vec<_> = trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
            Ok(self.agent(Some(tls().root_certs(RootCerts::Specific(Arc::new(roots))).build())))
        });
        agent.as_ref().map_err(Clone::clone)
    }

    fn agent(&self, tls: Option<TlsConfig>) -> Agent {
        let config = Agent::config_builder()
            .timeout_global(self.timeout)
            .http_status_as_error(false)
            // A report or a token goes to the configured server only.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent("weir");
        match tls {
            Some(tls) => config.tls_config(tls).build().new_agent(),
            None => config.build().new_agent(),
        }
    }
}
