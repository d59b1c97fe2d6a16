//! Certificates that clients have shown and nobody has verified yet, for plugins that do.
//!
//! They are kept beside the connections, of which few have one, so that no other connection and no request carries them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A certificate in DER, with the intermediate ones after it.
pub type Chain = Rc<[Box<[u8]>]>;

thread_local! {
    /// Chains of this worker's clients, by the numbers of their connections.
    static SHOWN: RefCell<HashMap<u64, Chain>> = RefCell::default();
}

/// Guard of a connection whose client has shown a certificate: plugins see it while the guard lives.
#[derive(Debug)]
pub struct ShownCertificate(u64);

impl ShownCertificate {
    /// Keeps what the client of a connection has shown.
    #[must_use]
    pub fn new(connection: u64, chain: Chain) -> Self {
        SHOWN.with_borrow_mut(|shown| shown.insert(connection, chain));
        Self(connection)
    }
}

impl Drop for ShownCertificate {
    fn drop(&mut self) {
        SHOWN.with_borrow_mut(|shown| shown.remove(&self.0));
    }
}

/// The chain that the client of a connection has shown.
pub(crate) fn of_connection(connection: u64) -> Option<Chain> {
    SHOWN.with_borrow(|shown| shown.get(&connection).cloned())
}

#[cfg(test)]
mod tests {
    use super::{ShownCertificate, of_connection};

    #[test]
    fn a_certificate_is_seen_while_its_connection_is_open() {
        let shown = ShownCertificate::new(7, [Box::from(&b"der"[..])].into());
        assert_eq!(of_connection(7).as_deref(), Some(&[Box::from(&b"der"[..])][..]));
        assert_eq!(of_connection(8), None);
        drop(shown);
        assert_eq!(of_connection(7), None);
    }
}
