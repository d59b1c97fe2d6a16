//! Certificates by ACME: the way to authorities.

use std::sync::Arc;
use std::time::Duration;

use weir_config::Settings;

use crate::agents::Agents;
use crate::process::priority::stand_back;

/// Time limit of a request to an authority.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of an answer: certificates with their chains.
const MOST_ANSWER: u64 = 1 << 20;

/// Orders certificates from now on, for plugins that follow an authority.
pub(crate) fn start(settings: &Settings) {
    let agents = Agents::new(&settings.tls.trusted_certificate, Some(TIMEOUT));
    let ask = move |request: ureq::http::Request<Vec<u8>>| {
        let agent = agents.of(&request.uri().to_string(), true)?;
        let (head, mut body) = agent.run(request).map_err(|error| error.to_string())?.into_parts();
        let body = body.with_config().limit(MOST_ANSWER).read_to_vec().map_err(|error| error.to_string())?;
        Ok(ureq::http::Response::from_parts(head, body))
    };
    let steps = settings.config.nice;
    weir_acme::serve(Arc::new(ask), move || stand_back(steps));
}
