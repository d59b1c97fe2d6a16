//! Content codings.

use crate::Failure;

/// Makes the content coding of one response body (RFC 9110 section 8.4), piece by piece.
pub trait Encoder: std::fmt::Debug {
    /// Puts the coding in the place of a piece. With `last` the body ends; then the piece may be empty. Whether earlier
    /// pieces are held back is the encoder's decision.
    ///
    /// # Errors
    /// The body cannot be encoded; the response is cut off.
    fn encode(&mut self, piece: &mut Vec<u8>, last: bool) -> Result<(), Failure>;
}
