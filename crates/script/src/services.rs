//! The services that scripts may send requests to.

use weir_plugin::{BuildCx, Invalid, Service, ServiceOptions};

use crate::addresses::addresses;

/// Services of a script: each scheme, host and port that stands in a text of the script or of its
/// configuration.
#[derive(Debug, Default)]
pub struct Services(Box<[(Box<str>, bool, Service)]>);

impl Services {
    /// Sets up the services that stand in these texts. A text that names none costs nothing.
    ///
    /// # Errors
    /// An upstream cannot be built.
    pub fn build<'t>(texts: impl IntoIterator<Item = &'t str>, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        let mut services = Vec::new();
        let mut found = Vec::new();
        let mut may_trust_all = false;
        for text in texts {
            may_trust_all |= text.contains("ssl_verify");
            addresses(text, &mut found);
        }
        found.sort_unstable();
        found.dedup();
        for address in found {
            for verify in [true, false] {
                let may_trust = may_trust_all && address.starts_with("https:");
                if !verify && !may_trust {
                    continue;
                }
                let options = ServiceOptions { verify, ..ServiceOptions::default() };
                // A text that is no address of a service may be anything.
                if let Ok(uri) = Service::parse("", &address, options) {
                    services.push((address.as_str().into(), verify, uri.build(build)?));
                }
            }
        }
        Ok(Self(services.into()))
    }

    /// The service at this scheme, host and port.
    #[must_use]
    pub fn find(&self, address: &str, verify: bool) -> Option<&Service> {
        let is = |(known, verifies, _): &&(Box<str>, bool, Service)| {
            **known == *address && (*verifies == verify || address.starts_with("http:"))
        };
        self.0.iter().find(is).map(|(_, _, service)| service)
    }
}
