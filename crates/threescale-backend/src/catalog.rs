//! Everything that calls are checked against, found by ids and keys.

use std::collections::HashMap;

use crate::fault::Fault;
use crate::model::{Application, Record, Service};
use crate::period::Period;

/// All services and applications.
#[derive(Debug, Default)]
pub struct Catalog {
    services: HashMap<String, Indexed>,
    /// Ids of default services, by provider key.
    defaults: HashMap<String, String>,
    /// By the id of the service.
    applications: HashMap<String, Applications>,
}

/// The applications of a service.
#[derive(Debug, Default)]
struct Applications {
    by_id: HashMap<String, Application>,
    /// Ids by user key.
    user_keys: HashMap<String, String>,
}

/// A service, with positions of its metrics in the place of ids.
#[derive(Debug)]
pub(crate) struct Indexed {
    pub(crate) service: Service,
    by_name: HashMap<String, usize>,
    parents: Vec<Option<usize>>,
    plans: HashMap<String, Vec<IndexedLimit>>,
}

/// A limit of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexedLimit {
    /// Position of the metric.
    pub(crate) metric: usize,
    pub(crate) period: Period,
    pub(crate) value: u64,
}

impl Indexed {
    fn new(service: Service) -> Self {
        let metrics = &service.metrics;
        let position = |id: &str| metrics.iter().position(|metric| metric.id == id);
        let by_name = metrics.iter().zip(0..).map(|(metric, at)| (metric.name.clone(), at)).collect();
        let parents = metrics.iter().map(|metric| position(metric.parent_id.as_deref()?)).collect();
        let mut plans = HashMap::new();
        for (plan, limits) in &service.limits {
            let indexed = limits.iter().filter_map(|limit| {
                let metric = position(&limit.metric_id)?;
                Some(IndexedLimit { metric, period: limit.period, value: limit.value })
            });
            let mut indexed: Vec<IndexedLimit> = indexed.collect();
            indexed.sort_by_key(|limit| (limit.metric, limit.period));
            plans.insert(plan.clone(), indexed);
        }
        Self { by_name, parents, plans, service }
    }

    /// The position of the metric of this name.
    pub(crate) fn metric(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The name of a metric.
    pub(crate) fn metric_name(&self, metric: usize) -> &str {
        self.service.metrics.get(metric).map_or("", |metric| &metric.name)
    }

    /// The id of a metric.
    pub(crate) fn metric_id(&self, metric: usize) -> &str {
        self.service.metrics.get(metric).map_or("", |metric| &metric.id)
    }

    /// The metrics above a metric, the nearest first. A circle ends where it has been gone round.
    pub(crate) fn ancestors(&self, metric: usize) -> impl Iterator<Item = usize> {
        let up = |at: &usize| self.parents.get(*at).copied().flatten();
        std::iter::successors(up(&metric), up).take(self.parents.len())
    }

    /// Names of the metrics right below a metric.
    pub(crate) fn children(&self, metric: usize) -> impl Iterator<Item = &str> {
        let children = self.parents.iter().enumerate().filter(move |(_, parent)| **parent == Some(metric));
        children.map(|(at, _)| self.metric_name(at))
    }

    /// The limits of a plan, by metric, long periods first.
    pub(crate) fn limits(&self, plan: Option<&str>) -> &[IndexedLimit] {
        plan.and_then(|plan| self.plans.get(plan)).map_or(&[], Vec::as_slice)
    }
}

impl Catalog {
    /// A catalogue of records.
    pub(crate) fn of(records: impl IntoIterator<Item = Record>) -> Self {
        let mut catalog = Self::default();
        for record in records {
            match record {
                Record::Service(service) => {
                    catalog.services.insert(service.id.clone(), Indexed::new(service));
                }
                Record::Application(application) => catalog.put_application(application),
            }
        }
        catalog.find_defaults();
        catalog
    }

    /// Adds a record, or puts it in the place of the one with its id.
    pub(crate) fn put(&mut self, record: Record) {
        match record {
            Record::Service(service) => {
                self.services.insert(service.id.clone(), Indexed::new(service));
                self.find_defaults();
            }
            Record::Application(application) => self.put_application(application),
        }
    }

    fn put_application(&mut self, application: Application) {
        let of_service = self.applications.entry(application.service_id.clone()).or_default();
        of_service.remove(&application.id);
        for key in &application.user_keys {
            of_service.user_keys.insert(key.clone(), application.id.clone());
        }
        of_service.by_id.insert(application.id.clone(), application);
    }

    /// Removes a service with its applications.
    pub(crate) fn remove_service(&mut self, id: &str) {
        self.services.remove(id);
        self.applications.remove(id);
        self.find_defaults();
    }

    /// Removes an application.
    pub(crate) fn remove_application(&mut self, service: &str, id: &str) {
        if let Some(of_service) = self.applications.get_mut(service) {
            of_service.remove(id);
        }
    }

    fn find_defaults(&mut self) {
        self.defaults.clear();
        for indexed in self.services.values().filter(|indexed| indexed.service.is_default) {
            if let Some(key) = &indexed.service.provider_key {
                self.defaults.insert(key.clone(), indexed.service.id.clone());
            }
        }
    }

    /// Everything that is known under the id of a service.
    pub(crate) fn known(&self, id: &str) -> Option<&Indexed> {
        self.services.get(id)
    }

    /// A service.
    pub(crate) fn service(&self, id: &str) -> Option<&Indexed> {
        self.known(id).filter(|indexed| indexed.service.provider_key.is_some())
    }

    /// All that is known of services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|indexed| &indexed.service)
    }

    /// The id of the default service of a provider.
    pub(crate) fn default_of(&self, provider_key: &str) -> Option<&str> {
        self.defaults.get(provider_key).map(String::as_str)
    }

    /// Everything that is known under the id of an application.
    pub(crate) fn known_application(&self, service: &str, id: &str) -> Option<&Application> {
        self.applications.get(service)?.by_id.get(id)
    }

    /// An application.
    pub(crate) fn application(&self, service: &str, id: &str) -> Option<&Application> {
        self.known_application(service, id).filter(|application| application.state.is_some())
    }

    /// All that is known of applications.
    pub(crate) fn applications(&self) -> impl Iterator<Item = &Application> {
        self.applications.values().flat_map(|of_service| of_service.by_id.values())
    }

    /// Ids of all that is known of applications of a service.
    pub(crate) fn application_ids(&self, service: &str) -> impl Iterator<Item = &str> {
        self.applications.get(service).into_iter().flat_map(|all| all.by_id.keys()).map(String::as_str)
    }

    /// The id of the application with a user key.
    pub(crate) fn id_of_user_key(&self, service: &str, key: &str) -> Option<&str> {
        self.applications.get(service)?.user_keys.get(key).map(String::as_str)
    }

    /// The service of a call: by its token, or by the provider's key. A service may be named by `NAME-ID` as well.
    pub(crate) fn service_of_call(&self, credentials: &Credentials<'_>) -> Result<&Indexed, Fault> {
        let Credentials { provider_key, token, service } = *credentials;
        let Some(provider_key) = provider_key else {
            let token = token.ok_or(Fault::ProviderKeyOrServiceTokenRequired)?;
            let id = service.ok_or(Fault::ServiceIdMissing)?;
            let found = self.service(id).filter(|indexed| indexed.service.tokens.contains(token));
            return found.ok_or_else(|| Fault::ServiceTokenInvalid { token: token.to_owned(), service: id.to_owned() });
        };
        let id = service.or_else(|| self.default_of(provider_key));
        let id = id.ok_or_else(|| Fault::ProviderKeyInvalidOrServiceMissing(provider_key.to_owned()))?;
        let end = id.rsplit('-').next().unwrap_or(id);
        let found = self.service(end).or_else(|| self.service(id));
        let found = found.ok_or_else(|| Fault::ServiceIdInvalid(id.to_owned()))?;
        if found.service.provider_key.as_deref() == Some(provider_key) {
            return Ok(found);
        }
        Err(match self.default_of(provider_key) {
            Some(_) => Fault::ServiceIdInvalid(id.to_owned()),
            None => Fault::ProviderKeyInvalid(provider_key.to_owned()),
        })
    }

    /// The application of a transaction.
    pub(crate) fn application_of(
        &self,
        service: &str,
        id: Option<&str>,
        user_key: Option<&str>,
    ) -> Result<&Application, Fault> {
        let id = match (id, user_key) {
            (Some(_), Some(_)) => return Err(Fault::AuthenticationError),
            (Some(id), None) => id,
            (None, Some(key)) => {
                let found = self.id_of_user_key(service, key);
                found.ok_or_else(|| Fault::UserKeyInvalid(Some(key.to_owned())))?
            }
            (None, None) => return Err(Fault::ApplicationNotFound(None)),
        };
        self.application(service, id).ok_or_else(|| Fault::ApplicationNotFound(Some(id.to_owned())))
    }
}

/// Credentials of a gateway, none of them empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Credentials<'a> {
    pub(crate) provider_key: Option<&'a str>,
    pub(crate) token: Option<&'a str>,
    /// Id of the service.
    pub(crate) service: Option<&'a str>,
}

impl Applications {
    fn remove(&mut self, id: &str) {
        if let Some(before) = self.by_id.remove(id) {
            for key in &before.user_keys {
                if self.user_keys.get(key).is_some_and(|of| of == id) {
                    self.user_keys.remove(key);
                }
            }
        }
    }
}
