//! Messages for nodes.

/// The message that a node is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outgoing {
    /// The client's request, as this node has to see it.
    Request { websocket: bool },
    /// A request that was made here, as it stands in the buffer.
    Subrequest,
}
