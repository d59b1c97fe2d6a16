//! Connections of the gateway to itself, in memory: a plugin that makes requests of a client's request speaks HTTP/1.1 on
//! one, as the client would on a socket, and is served as the client would be.

use std::cell::RefCell;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::exchange::Client;

/// The plugin's end of such a connection.
pub trait InnerConnection: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> InnerConnection for T {}

/// Opens a connection that is served for this client; `None`: the worker has ended.
pub type Connect = Box<dyn Fn(&Client) -> Option<Box<dyn InnerConnection>>>;

thread_local! {
    /// Of the worker of this thread.
    static CONNECT: RefCell<Option<Connect>> = const { RefCell::new(None) };
}

/// Tells how connections are opened on this thread, which is a worker's.
pub fn set_connect(connect: Connect) {
    CONNECT.with(|place| *place.borrow_mut() = Some(connect));
}

/// Opens a connection on which requests are served as this client's: by its address, with [`Client::inner`] set. `None` on
/// a thread that serves nothing.
#[must_use]
pub fn connect(client: &Client) -> Option<Box<dyn InnerConnection>> {
    CONNECT.with(|connect| connect.borrow().as_ref()?(client))
}
