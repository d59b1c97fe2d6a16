//! Collections of MongoDB that reports are inserted into, with a connection that is kept for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use weir_telemetry::reports::Documents;

use crate::exports::mongodb::{Access, Connection};

/// Collections that are known at one time; beyond that all are opened anew.
const MOST: usize = 64;

/// The collections of this process.
pub(super) struct Collections {
    /// The setting `tls.trusted_certificate`.
    trusted: String,
    /// By URL and collection.
    known: Mutex<HashMap<(String, String), SharedKnown>>,
}

type SharedKnown = Arc<Mutex<Known>>;

struct Known {
    access: Access,
    connection: Option<Connection>,
}

impl Collections {
    pub(super) fn new(trusted: &str) -> Self {
        Self { trusted: trusted.to_owned(), known: Mutex::default() }
    }

    /// Inserts records.
    ///
    /// # Errors
    /// Not all of them were inserted.
    pub(super) fn insert(&self, to: &Documents, records: &mut dyn Iterator<Item = &[u8]>) -> Result<(), String> {
        let known = self.of(to)?;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut connection = match known.connection.take() {
            Some(connection) => connection,
            None => known.access.connect()?,
        };
        known.access.insert(&mut connection, records)?;
        known.connection = Some(connection);
        Ok(())
    }

    fn of(&self, to: &Documents) -> Result<SharedKnown, String> {
        let name = (to.url.clone(), to.collection.clone());
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&name) {
            return Ok(Arc::clone(known));
        }
        let access = Access::of(&to.url, &to.collection, &self.trusted).map_err(|error| format!("MongoDB: {error}"))?;
        if all.len() >= MOST {
            all.clear();
        }
        let known = Arc::new(Mutex::new(Known { access, connection: None }));
        all.insert(name, Arc::clone(&known));
        Ok(known)
    }
}
