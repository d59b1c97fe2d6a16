//! The gateway's side of the plugin API, for the data plane and the registry alone. Plugins use what stands at the root of
//! the crate.

mod contexts;
pub(crate) mod definition;

pub use crate::certificates::ShownCertificate;
pub use crate::ending::end_worker;
pub use crate::exchange::{BUFFER, Exchange, StreamInfo, Times, UpstreamInfo};
pub use contexts::{body, log, request, request_body, response, upstream_request};
pub use definition::{CredentialChange, Definition, Instance, Prepared};

/// The budget for the memory that messages may fill.
pub mod buffers {
    pub use crate::buffers::{Held, NO_ROOM, peak, refused, set_limit, taken};
}
