//! The dashboard's built files, compressed in the program.
//!
//! The sources are in `dashboard/` at the root of the repository, `make dashboard` builds them into `dashboard/dist`, and
//! both are committed. A test of this crate compares the sources with the digest that the build has left.

use std::io::Read;

use flate2::read::GzDecoder;

/// A file of the dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Path below the root, without a leading slash: `dashboard/app.js`.
    pub path: &'static str,
    /// Content type.
    pub media_type: &'static str,
    /// Entity tag: length and checksum of the content, in quotes.
    pub tag: &'static str,
    /// Content as gzip.
    pub gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The file at a path without a leading slash; the empty path is the page itself.
#[must_use]
pub fn asset(path: &str) -> Option<&'static Asset> {
    let path = if path.is_empty() { "index.html" } else { path };
    ASSETS.iter().find(|asset| asset.path == path)
}

impl Asset {
    /// The content, for a client that takes no gzip.
    #[must_use]
    pub fn plain(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        // The program's own data is whole; without it the file is empty.
        if GzDecoder::new(self.gzip).read_to_end(&mut plain).is_err() {
            plain.clear();
        }
        plain
    }
}
