//! Reports of plugins on their way to collectors: requests on threads that may block.

use std::sync::Arc;

use weir_config::Settings;
use weir_telemetry::reports::{self, Bounds, Post, Poster};

use crate::agents::Agents;

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
    reports::start(bounds, Arc::new(Collectors(Agents::new(&settings.tls.trusted_certificate, None))))
}

/// HTTP clients for collectors.
struct Collectors(Agents);

impl Poster for Collectors {
    fn post(&self, post: &Post, body: &[u8]) -> Result<(), String> {
        let request =
            self.0.of(&post.uri, post.verify)?.post(&post.uri).config().timeout_global(Some(post.timeout)).build();
        let request = post.fields.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        // Read to its end, a connection can be used again; whatever it says makes no difference.
        let _ = response.body_mut().with_config().limit(MOST).read_to_vec();
        if status < 400 { Ok(()) } else { Err(format!("status {status}")) }
    }
}
