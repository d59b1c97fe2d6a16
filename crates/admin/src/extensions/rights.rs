//! Rights of a key: by its role, and by its team.

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_store::{Change, Commit, Kind};

use crate::Refused;
use crate::answer::Answer;
use crate::api::Api;
use crate::keys::{Identity, Role};
use crate::request::Request;

/// Kinds that a team may have resources of. What is left concerns everybody.
const OF_TEAMS: [Kind; 10] = [
    Kind::Routes,
    Kind::Services,
    Kind::GraphqlCostDecorations,
    Kind::Upstreams,
    Kind::PluginConfigs,
    Kind::Plans,
    Kind::ConsumerGroups,
    Kind::Consumers,
    Kind::Credentials,
    Kind::Developers,
];

impl Api {
    /// Checks that a key may make all changes of a commit.
    pub(crate) async fn check_rights(&self, commit: &Commit, by: &Identity) -> Result<(), Refused> {
        let kinds = commit.changes.iter().map(|change| change.key.kind());
        if let Some(other) = { kinds }.find(|kind| !by.role.may_change(*kind)) {
            return Err(by.refused(other));
        }
        let Some(team) = &by.team else { return Ok(()) };
        for change in &commit.changes {
            let key = &change.key;
            let is_own = OF_TEAMS.contains(&key.kind()) && self.is_of_team(change, commit, team).await?;
            if !is_own {
                let reason = format!("{key}: the team {team} may only change resources with the label team: {team}");
                return Err(Refused::NotAllowed(reason));
            }
        }
        Ok(())
    }

    /// True if a resource belongs to a team before and after a change.
    async fn is_of_team(&self, change: &Change, commit: &Commit, team: &str) -> Result<bool, Refused> {
        // A credential belongs to the team of its consumer, and what is below a service to that of the service.
        let owner = change.key.owner_key().unwrap_or_else(|| change.key.clone());
        let is_own = |text: &str| team_of(text).as_deref() == Some(team);
        let after = commit.changes.iter().find(|change| change.key == owner).map(|change| change.value.as_deref());
        let before = self.configuration.store().get(&owner).await.map_err(Refused::Store)?;
        let was_own = before.as_ref().is_none_or(|item| is_own(&item.value));
        Ok(was_own
            && match after {
                Some(Some(text)) => is_own(text),
                Some(None) => true,
                // Nothing is known of the team of what is below a resource that is not there.
                None => before.is_some(),
            })
    }

    /// Answer about the key of a request: name, role, team, and the kinds that it may change.
    pub(crate) fn identity(request: &Request) -> Answer {
        let Identity { name, role, team, .. } = &request.by;
        let mut told = json!({ "name": name, "role": role.name() });
        if let Some(team) = team {
            told["team"] = team.as_str().into();
        }
        let kinds = Kind::ranked().iter().filter(|kind| {
            role.may_change(**kind) && (team.is_none() || OF_TEAMS.contains(kind)) && *role != Role::Developer
        });
        told["may_change"] = kinds.map(|kind| kind.plural()).collect();
        Answer::json(StatusCode::OK, &told)
    }
}

/// The label `team` of a resource.
pub(super) fn team_of(text: &str) -> Option<String> {
    let value = serde_json::from_str::<Value>(text).ok()?;
    value.get("labels")?.get("team")?.as_str().map(str::to_owned)
}

/// The team whose resources a list shows: that of the key, or the one that is asked for.
pub(super) fn wanted_team(request: &Request) -> Result<Option<&str>, Answer> {
    match (request.by.team.as_deref(), request.query.get("team")) {
        (Some(own), Some(other)) if own != other => {
            Err(Answer::error(StatusCode::FORBIDDEN, format!("team: this key is of the team {own}")))
        }
        (own, wanted) => Ok(own.or(wanted)),
    }
}
