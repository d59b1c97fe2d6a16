//! Applications as the dashboard shows them: their plans, and what is used of their limits. Keys are counted and not shown.

use serde_json::{Value, json};

use crate::backend::Backend;
use crate::catalog::Catalog;
use crate::model::Application;
use crate::period::Period;

/// A question for applications.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Text that stands in the id, the plan, the state or the service of an application; empty: any.
    pub words: &'a str,
    /// Id of the service; empty: all services.
    pub service: &'a str,
    /// Applications that are passed over.
    pub skip: usize,
    /// Most applications of the answer.
    pub most: usize,
}

impl Backend {
    /// Applications in the order of services and ids, at a time in milliseconds since 1970, with the number of all that the
    /// question is about.
    #[must_use]
    pub fn applications(&self, question: &Question<'_>, now: u64) -> Value {
        let catalog = self.catalog();
        let words = question.words.to_lowercase();
        let mut found: Vec<&Application> = catalog.applications().filter(|one| question.takes(one, &words)).collect();
        found.sort_by(|a, b| (&a.service_id, &a.id).cmp(&(&b.service_id, &b.id)));
        let shown = found.iter().skip(question.skip).take(question.most);
        let shown: Vec<Value> = shown.map(|application| self.shown(&catalog, application, now)).collect();
        json!({ "total": found.len(), "applications": shown })
    }

    fn shown(&self, catalog: &Catalog, application: &Application, now: u64) -> Value {
        let service = catalog.known(&application.service_id);
        let used = service.map(|service| (service, self.counts.used(service, application, now)));
        let limits = used.into_iter().flat_map(|(service, used)| used.into_iter().map(move |used| (service, used)));
        let limits = limits.map(|(service, used)| {
            let ends = (used.period != Period::Eternity).then_some(used.end);
            json!({
                "metric": service.metric_name(used.metric), "period": used.period.name(), "used": used.count,
                "max": used.max, "ends": ends,
            })
        });
        json!({
            "service": application.service_id,
            "id": application.id,
            "state": application.state,
            "plan": { "id": application.plan_id, "name": application.plan_name },
            "user_keys": application.user_keys.len(),
            "keys": application.keys.len(),
            "referrer_filters": application.referrer_filters,
            "limits": limits.collect::<Vec<Value>>(),
        })
    }
}

impl Question<'_> {
    fn takes(&self, application: &Application, words: &str) -> bool {
        let optional = [&application.state, &application.plan_id, &application.plan_name];
        let texts = optional.into_iter().flatten().chain([&application.id, &application.service_id]);
        application.state.is_some()
            && (self.service.is_empty() || application.service_id == self.service)
            && texts.into_iter().any(|text| text.to_lowercase().contains(words))
    }
}
