//! Errors of a command.

use std::rc::Rc;

use redis::ServerError;

/// Reasons for a command without a result.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// There is no connection, and none can be made now.
    #[error("no connection: {0}")]
    Away(Rc<str>),
    /// The connection broke before the reply; whether the server ran the command is not known.
    #[error("the connection broke: {0}")]
    Broken(Rc<str>),
    /// The reply did not come in time.
    #[error("no reply in time")]
    Timeout,
    /// Too many commands wait for their replies.
    #[error("too many commands wait")]
    Overloaded,
    /// The server refused the command.
    #[error("refused: {0}")]
    Refused(ServerError),
    /// The reply is none that the command has.
    #[error("unexpected reply")]
    Unexpected,
    /// The command was sent from server to server too often.
    #[error("too many redirections")]
    Redirections,
}
