//! References between items.

use std::collections::{HashMap, HashSet};

use super::item::Item;
use super::{InvalidItems, Loader};
use crate::diagnostic::{Diagnostic, nearest};
use crate::node::{Mark, push_name, quoted};
use crate::resource::{
    Consumer, ConsumerGroup, Document, GlobalRule, Id, Origin, PluginConfig, Route, Service, Ssl, SslType, Upstream,
};

impl Loader<'_> {
    /// Checks that every reference leads to an item. Those that are referred to come first, so that what refers to a
    /// dropped item is dropped in turn.
    pub(super) fn link(&mut self, document: &mut Document) {
        let clients = document.ssls.iter().filter(|ssl| ssl.r#type == SslType::Client);
        let clients: HashSet<String> = clients.map(|ssl| ssl.id.to_string()).collect();
        self.keep(&mut document.upstreams, |loader, upstream: &Upstream| {
            loader.client_certificate(&upstream.origin, "", Some(upstream), &clients)
        });
        let upstreams = ids(&document.upstreams);
        let plugin_configs = ids(&document.plugin_configs);
        let groups = ids(&document.consumer_groups);
        self.keep(&mut document.services, |loader, service: &Service| {
            let origin = &service.origin;
            loader.client_certificate(origin, "upstream.", service.upstream.as_deref(), &clients)
                && loader.refers(origin, "upstream_id", &service.upstream_id, Upstream::SECTION, &upstreams)
        });
        let services = ids(&document.services);
        self.keep(&mut document.routes, |loader, route: &Route| {
            let origin = &route.origin;
            // All three, for all the errors.
            let upstream = loader.refers(origin, "upstream_id", &route.upstream_id, Upstream::SECTION, &upstreams);
            let service = loader.refers(origin, "service_id", &route.service_id, Service::SECTION, &services);
            let config = PluginConfig::SECTION;
            let config = loader.refers(origin, "plugin_config_id", &route.plugin_config_id, config, &plugin_configs);
            let client = loader.client_certificate(origin, "upstream.", route.upstream.as_deref(), &clients);
            upstream && service && config && client
        });
        self.keep(&mut document.consumers, |loader, consumer: &Consumer| {
            loader.refers(&consumer.origin, "group_id", &consumer.group_id, ConsumerGroup::SECTION, &groups)
        });
        self.plugins_of_global_rules(&mut document.global_rules);
    }

    /// Leaves the items that pass a test.
    fn keep<T: Item>(&mut self, items: &mut Vec<T>, test: impl Fn(&mut Self, &T) -> bool) {
        items.retain_mut(|item| {
            let keep = test(self, item);
            if !keep {
                let id = item.id().to_owned();
                let Origin { path, mark, .. } = item.origin().clone();
                self.drop_item(T::SECTION, mark, path, Some(id));
            }
            keep
        });
    }

    /// Checks that the certificate an upstream shows to its nodes is there.
    fn client_certificate(
        &mut self,
        origin: &Origin,
        prefix: &str,
        upstream: Option<&Upstream>,
        known: &HashSet<String>,
    ) -> bool {
        let Some(id) = upstream.and_then(|u| u.tls.as_ref()?.client_cert_id.as_ref()) else { return true };
        if known.contains(id.as_str()) {
            return true;
        }
        let path = format!("{}.{prefix}tls.client_cert_id", origin.path);
        let message =
            format!("there is no item of {} with type: client and the id {}", Ssl::SECTION, quoted(id.as_str()));
        self.found.push(Diagnostic::error(origin.mark, path, message));
        false
    }

    fn refers(
        &mut self,
        origin: &Origin,
        field: &'static str,
        id: &Option<Id>,
        section: &'static str,
        known: &HashSet<String>,
    ) -> bool {
        let Some(id) = id else { return true };
        if known.contains(id.as_str()) {
            return true;
        }
        let kind = section.trim_end_matches('s').replace('_', " ");
        let mark = origin.references.iter().find(|(name, _)| *name == field).map_or(origin.mark, |(_, mark)| *mark);
        let mut path = origin.path.clone();
        push_name(&mut path, field);
        if self.invalid_ids.get(section).is_some_and(|ids| ids.contains(id.as_str())) {
            // Otherwise that error is enough.
            if self.options.invalid_items == InvalidItems::Skip {
                let message = format!("the {kind} {} is invalid", quoted(id.as_str()));
                self.found.push(Diagnostic::error(mark, path, message));
            }
            return false;
        }
        let error = Diagnostic::error(mark, path, format!("there is no {kind} with the id {}", quoted(id.as_str())));
        let near = self.nearest_id(id.as_str(), known);
        self.found.push(match near {
            Some(near) => error.with_hint(format!("did you mean {near}?")),
            None if known.is_empty() && !self.invalid_ids.contains_key(section) => {
                error.with_hint(format!("the file has no {section}"))
            }
            None => error,
        });
        false
    }

    /// The nearest of many ids, as long as there is not too much to compare.
    fn nearest_id(&mut self, id: &str, known: &HashSet<String>) -> Option<String> {
        self.comparisons = self.comparisons.checked_sub(known.len())?;
        let mut near: Vec<&str> = known.iter().map(String::as_str).collect();
        near.sort_unstable();
        nearest(id, near).map(str::to_owned)
    }

    /// A plugin may stand in one global rule only: which of two would hold is not said.
    fn plugins_of_global_rules(&mut self, rules: &mut Vec<GlobalRule>) {
        let mut first: HashMap<String, (String, Mark)> = HashMap::new();
        rules.retain(|rule| {
            let mut keep = true;
            for (name, plugin) in &rule.plugins {
                let mut path = rule.origin.path.clone();
                push_name(&mut path, "plugins");
                push_name(&mut path, name);
                if let Some((id, at)) = first.get(name) {
                    let message = format!("the plugin {name} is in the global rule {id} already, at {at}");
                    self.found.push(Diagnostic::error(plugin.conf.mark, path, message));
                    keep = false;
                }
            }
            if keep {
                let names = rule.plugins.iter();
                first.extend(names.map(|(name, plugin)| (name.clone(), (rule.id.to_string(), plugin.conf.mark))));
            } else {
                let Origin { path, mark, .. } = rule.origin.clone();
                self.drop_item(GlobalRule::SECTION, mark, path, Some(rule.id.to_string()));
            }
            keep
        });
    }
}

fn ids<T: Item>(items: &[T]) -> HashSet<String> {
    items.iter().map(|item| item.id().to_owned()).collect()
}
