//! Connections over HTTP/2 (RFC 9113), for both roles: streams, windows and frames, apart from sockets and exchanges.
//!
//! One task owns a connection's socket. It hands received bytes to [`Connection::receive`] and writes what lies in the
//! connection's write buffer. Streams are served by tasks of their own, which share the connection: they take DATA that was
//! received for them, and append their frames to the write buffer, so that frames of many streams leave with one write.
//!
//! Memory of a connection is bounded whatever the peer does: received DATA by the connection's window, which opens only
//! when streams have taken it; frames to be written by the room that streams compete for, and by not reading on
//! while answers to control frames pile up; header blocks by their size and the number of their frames.

mod abuse;
mod body;
mod client;
mod connection;
mod fields;
mod receive;
mod seat;
mod send;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use abuse::Abuse;
pub(crate) use body::Incoming;
pub(crate) use connection::{Connection, Limits, Peer, Rooms, Shared, TlsFacts};
pub(crate) use fields::{FieldList, is_of_connection, is_sound};
pub(crate) use seat::{Job, Seat, Seats};
pub(crate) use stream::{Received, Stream};
