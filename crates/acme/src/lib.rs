//! Certificates by ACME (RFC 8555): ordered when a client first asks for a name, proved by HTTP (section 8.3), renewed
//! before they end.
//!
//! Plugins [`follow`] an authority while they are configured. A handshake for one of its names asks for a certificate here,
//! and goes on without one; a thread of its own orders it, and the next handshake shows it.

mod authority;
mod issued;
mod keeper;
mod order;
mod storage;

use std::sync::Arc;

pub use authority::{Authority, KeyKind, Names, Place, Redis};
pub use storage::{challenge_key, folder, set_folder};

use issued::ISSUED;

/// A client for requests to authorities, which may block for a while: the request with its body, and the answer or what is
/// wrong.
pub type Http = Arc<dyn Fn(http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, String> + Send + Sync>;

/// Orders certificates in this process from now on, with this client. The thread that does so is started once an authority
/// is followed, and runs `begin` before anything else. A second call has no effect.
pub fn serve(http: Http, begin: impl Fn() + Send + Sync + 'static) {
    keeper::serve(http, Box::new(begin));
    if is_followed() {
        keeper::start();
    }
}

/// Takes an authority into account for as long as the result lives.
#[must_use]
pub fn follow(authority: Authority) -> Arc<Authority> {
    let followed = ISSUED.follow(authority);
    keeper::start();
    followed
}

/// True while an authority is followed.
#[must_use]
pub fn is_followed() -> bool {
    ISSUED.has_authorities()
}

/// The text by which a token of a challenge is answered (section 8.1), where the challenge is one of this gateway.
#[must_use]
pub fn authorization(token: &str) -> Option<Arc<str>> {
    ISSUED.authorization(token)
}

/// Orders a certificate for a name, unless it has one or an order is under way. False where no authority is followed that
/// issues one.
#[must_use]
pub fn ask(name: &str) -> bool {
    ISSUED.ask_for(name)
}

/// Progress of a certificate for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// A certificate is there.
    Held,
    /// The last order has failed, for this reason, and none is made for a while.
    Failed(String),
    /// One is ordered, or nobody has asked for it.
    Open,
}

/// Progress of a certificate for a name.
#[must_use]
pub fn progress(name: &str) -> Progress {
    ISSUED.progress(name)
}
