//! Consumers: who calls, as authentication plugins find out.

use std::collections::HashMap;

use crate::tables::Named;

/// A consumer as the path of a request needs it.
#[derive(Debug)]
pub struct Consumer {
    /// Its user name.
    pub name: Named,
    /// Its consumer group.
    pub group_id: Option<Box<str>>,
    /// Its label `custom_id`, sent as `X-Consumer-Custom-ID`.
    pub custom_id: Option<Box<str>>,
}

/// All consumers, by dense id.
#[derive(Debug, Default)]
pub struct Consumers {
    list: Vec<Consumer>,
    by_name: HashMap<Box<str>, u32>,
    /// Credential ids, by dense id; sent as `X-Credential-Identifier`.
    credentials: Vec<Box<str>>,
}

/// Whom an authentication plugin found, and by which credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerMatch {
    /// Dense id of the consumer.
    pub consumer: u32,
    /// Dense id of the credential, when it was not the consumer's own configuration.
    pub credential: Option<u32>,
}

impl Consumers {
    /// Adds a consumer and gives its dense id.
    pub fn push(&mut self, consumer: Consumer) -> u32 {
        let id = self.list.len() as u32;
        self.by_name.insert(consumer.name.text.clone(), id);
        self.list.push(consumer);
        id
    }

    /// Adds a credential id and gives its dense id.
    pub fn push_credential(&mut self, id: &str) -> u32 {
        self.credentials.push(id.into());
        self.credentials.len() as u32 - 1
    }

    /// The consumer with this dense id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Consumer> {
        self.list.get(id as usize)
    }

    /// The dense id of the consumer with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The id of the credential with this dense id.
    #[must_use]
    pub fn credential(&self, id: u32) -> Option<&str> {
        self.credentials.get(id as usize).map(AsRef::as_ref)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
