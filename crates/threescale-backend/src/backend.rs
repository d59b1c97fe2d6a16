//! The state of the backend, and where its services come from.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Mutex;
use weir_plugins::PlanCounts;
use weir_store::{Change, Commit, Listing, Store};

use crate::catalog::Catalog;
use crate::counts::Counts;
use crate::errors::ErrorLists;
use crate::model::{Record, application_key, service_key};

/// The backend. One thread answers its calls, one at a time, so that what a call finds within its limits is still so when
/// the call counts.
pub struct Backend {
    catalog: RwLock<Catalog>,
    pub(crate) counts: Counts,
    pub(crate) errors: RwLock<ErrorLists>,
    source: Source,
    /// Name and password of the internal API; `None`: it is off.
    pub(crate) login: Option<Login>,
    /// Held for a change of the store.
    changing: Mutex<()>,
}

/// The source of services and applications.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file, which the internal API shows and does not change.
    File,
    /// A store, which the internal API changes.
    Store(Arc<dyn Store>),
}

/// Name and password of the internal API.
#[derive(Clone)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").field("source", &self.source).finish_non_exhaustive()
    }
}

/// A step of a change.
#[derive(Debug)]
pub(crate) enum Step {
    Put(Record),
    RemoveService(String),
    RemoveApplication { service: String, id: String },
}

/// The reason why something was not changed.
#[derive(Debug)]
pub(crate) enum NotChanged {
    /// It comes from a file.
    OfFile,
    /// The store did not take it.
    Store(String),
}

impl Backend {
    /// A backend with these services.
    #[must_use]
    pub fn new(catalog: Catalog, counts: Arc<PlanCounts>, source: Source, login: Option<Login>) -> Self {
        Self {
            catalog: RwLock::new(catalog),
            counts: Counts::new(counts),
            errors: RwLock::default(),
            source,
            login,
            changing: Mutex::const_new(()),
        }
    }

    /// Replaces all services and applications.
    pub fn replace(&self, catalog: Catalog) {
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = catalog;
    }

    /// All services and applications.
    pub(crate) fn catalog(&self) -> RwLockReadGuard<'_, Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the steps say that are made of the state, all or nothing. `plan` may answer by itself instead.
    pub(crate) async fn change<T, E: From<NotChanged>>(
        &self,
        plan: impl FnOnce(&Catalog) -> Result<(Vec<Step>, T), E>,
    ) -> Result<T, E> {
        let Source::Store(store) = &self.source else { return Err(NotChanged::OfFile.into()) };
        let _one_at_a_time = self.changing.lock().await;
        let (steps, commit, answer) = {
            let catalog = self.catalog();
            let (steps, answer) = plan(&catalog)?;
            let changes = changes(&catalog, &steps).map_err(|error| NotChanged::Store(error.to_string()))?;
            (steps, Commit { changes, author: "internal API".to_owned(), expect: Vec::new() }, answer)
        };
        if !commit.changes.is_empty() {
            store.commit(commit).await.map_err(|error| NotChanged::Store(error.to_string()))?;
        }
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        for step in steps {
            match step {
                Step::Put(record) => catalog.put(record),
                Step::RemoveService(id) => {
                    catalog.remove_service(&id);
                    self.errors.write().unwrap_or_else(PoisonError::into_inner).clear(&id);
                }
                Step::RemoveApplication { service, id } => catalog.remove_application(&service, &id),
            }
        }
        Ok(answer)
    }
}

/// The changes of the store that steps need. The last step about a record counts.
fn changes(catalog: &Catalog, steps: &[Step]) -> serde_json::Result<Vec<Change>> {
    let mut changes = HashMap::new();
    let mut add = |key, value| {
        changes.insert(key, value);
    };
    for step in steps {
        match step {
            Step::Put(record) => add(record.key(), Some(serde_json::to_string(record)?.into())),
            Step::RemoveService(id) => {
                catalog.application_ids(id).for_each(|application| add(application_key(id, application), None));
                add(service_key(id), None);
            }
            Step::RemoveApplication { service, id } => add(application_key(service, id), None),
        }
    }
    Ok(changes.into_iter().map(|(key, value)| Change { key, value, expires: None }).collect())
}

/// The services and applications of a store.
///
/// # Errors
/// The stored value is not one of the backend's.
pub fn stored(listing: &Listing) -> Result<Catalog, String> {
    let read = |item: &weir_store::Item| {
        serde_json::from_str::<Record>(&item.value).map_err(|error| format!("{}: {error}", item.key))
    };
    Ok(Catalog::of(listing.items.iter().map(read).collect::<Result<Vec<_>, _>>()?))
}
