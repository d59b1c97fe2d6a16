//! What plugins report, on its way to collectors: requests on threads that may block.

use std::sync::{Arc, OnceLock};

use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use weir_config::Settings;
use weir_telemetry::reports::{self, Bounds, Post, Poster};

/// Most bytes of a collector's answer that are read to keep its connection.
const MOST: u64 = 64 << 10;

/// Starts what sends reports.
///
/// # Errors
/// The folder for spilled reports cannot be made, or a thread not be started.
pub(crate) fn start(settings: &Settings) -> std::io::Result<()> {
    let options = &settings.reports;
    let spill = match options.spill.as_str() {
        "" => None,
        folder => {
            std::fs::create_dir_all(folder)?;
            Some((folder.into(), options.spill_size.bytes()))
        }
    };
    let bounds = Bounds { ring: options.buffer.as_usize(), memory: options.memory.as_usize(), spill };
    reports::start(bounds, Arc::new(Collectors::new(&settings.tls.trusted_certificate)))
}

/// Speaks HTTP to collectors.
struct Collectors {
    /// The setting `tls.trusted_certificate`.
    trusted: String,
    plain: OnceLock<Agent>,
    /// With the authorities, which are read when there is a use for them.
    verifying: OnceLock<Result<Agent, String>>,
    trusting: OnceLock<Agent>,
}

impl Collectors {
    fn new(trusted: &str) -> Self {
        let (plain, verifying, trusting) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { trusted: trusted.to_owned(), plain, verifying, trusting }
    }

    fn agent_for(&self, post: &Post) -> Result<&Agent, String> {
        let tls = || TlsConfig::builder().unversioned_rustls_crypto_provider(Arc::clone(weir_proxy::crypto_provider()));
        if !post.uri.starts_with("https:") {
            return Ok(self.plain.get_or_init(|| agent(None)));
        }
        if !post.verify {
            return Ok(self.trusting.get_or_init(|| agent(Some(tls().disable_verification(true).build()))));
        }
        let agent = self.verifying.get_or_init(|| {
            let trusted = weir_proxy::trusted_certificates(&self.trusted)?;
            let roots: Vec<_> = trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
            Ok(agent(Some(tls().root_certs(RootCerts::Specific(Arc::new(roots))).build())))
        });
        agent.as_ref().map_err(Clone::clone)
    }
}

fn agent(tls: Option<TlsConfig>) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // Reports go where the configuration says, and nowhere else.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent("weir");
    match tls {
        Some(tls) => config.tls_config(tls).build().new_agent(),
        None => config.build().new_agent(),
    }
}

impl Poster for Collectors {
    fn post(&self, post: &Post, body: &[u8]) -> Result<(), String> {
        let request = self.agent_for(post)?.post(&post.uri).config().timeout_global(Some(post.timeout)).build();
        let request = post.fields.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        // Read to its end, a connection can be used again; whatever it says makes no difference.
        let _ = response.body_mut().with_config().limit(MOST).read_to_vec();
        if status < 400 { Ok(()) } else { Err(format!("status {status}")) }
    }
}
