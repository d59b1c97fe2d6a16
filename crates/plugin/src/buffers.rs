//! The budget for the memory that messages may fill, and the failure of an exchange for which there is no room.

pub use weir_net::buffers::{Held, peak, refused, set_limit, taken};

use crate::{Failure, Side};

/// The failure of an exchange for which there is no room.
pub const NO_ROOM: Failure = Failure { status: 503, side: Side::Gateway, reason: weir_net::buffers::NO_ROOM };
