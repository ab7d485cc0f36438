//! The subscription index: which subscribers have a filter that matches a topic name.
//!
//! Filters without a wildcard are one hash look-up, whatever their number. Filters with one form a tree by level, whose
//! level names are interned and whose edges are pairs of numbers, so that matching compares each level of
//! the name with the interned ones once and allocates nothing (up to 16 levels). The order of visits
//! depends on the filters alone: exact first, then the tree, subscribers of one filter by key.
//!
//! Invariant: all tables hash with a random seed. Clients choose filters, and with them level names and which nodes
//! have edges; with a fixed hash they could choose ones that all collide.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::subscribers::Subscribers;

/// An index of filters, each with its subscribers. `K` names a subscriber; `V` is what it subscribed with.
///
/// Filters are valid ([`super::check_filter`]) and unshared: of a shared one, the caller stores the inner filter
/// under a key of the group.
#[derive(Debug)]
pub struct Trie<K, V> {
    exact: HashMap<Box<str>, Subscribers<K, V>>,
    tree: Tree<K, V>,
    len: usize,
}

/// Number of a node of the tree.
type NodeIndex = u32;
/// Number of an interned level name.
type Symbol = u32;

const ROOT: NodeIndex = 0;
/// No node, or a level name that is in no filter.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Tree<K, V> {
    symbols: HashMap<Box<str>, Interned>,
    free_symbols: Vec<Symbol>,
    edges: HashMap<(NodeIndex, Symbol), NodeIndex>,
    nodes: Vec<Node<K, V>>,
    free_nodes: Vec<NodeIndex>,
}

#[derive(Debug)]
struct Interned {
    symbol: Symbol,
    /// Edges with this name; the name goes with the last one.
    edges: u32,
}

/// A level of some filters. Subscribers are boxed, since most nodes have none.
#[derive(Debug)]
struct Node<K, V> {
    parent: NodeIndex,
    /// The child of the level `+`.
    plus: NodeIndex,
    /// Children, `plus` included.
    children: u32,
    /// Of the filter that ends here.
    here: Option<Box<Subscribers<K, V>>>,
    /// Of the filter that goes on with `#`.
    below: Option<Box<Subscribers<K, V>>>,
}

impl<K: Ord + Clone, V> Default for Trie<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V> Trie<K, V> {
    /// An empty index.
    pub fn new() -> Self {
        Trie {
            exact: HashMap::default(),
            tree: Tree::new(),
            len: 0,
        }
    }

    /// Subscriptions: pairs of filter and key.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no subscription.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Subscribes `key` to `filter`; gives the value it was subscribed with before.
    pub fn insert(&mut self, filter: &str, key: K, value: V) -> Option<V> {
        let old = if has_wildcard(filter) {
            self.tree.slot(filter).insert(key, value)
        } else if let Some(subscribers) = self.exact.get_mut(filter) {
            subscribers.insert(key, value)
        } else {
            self.exact
                .insert(filter.into(), Subscribers::One(key, value));
            None
        };
        self.len += usize::from(old.is_none());
        old
    }

    /// Ends the subscription of `key` to `filter`; gives the value it had.
    pub fn remove(&mut self, filter: &str, key: &K) -> Option<V> {
        let removed = if has_wildcard(filter) {
            self.tree.remove(filter, key)?
        } else {
            let subscribers = self.exact.get_mut(filter)?;
            let removed = subscribers.remove(key)?;
            if subscribers.is_empty() {
                self.exact.remove(filter);
                give_back(&mut self.exact);
            }
            removed
        };
        self.len -= 1;
        Some(removed)
    }

    /// What `key` is subscribed to `filter` with.
    pub fn get(&self, filter: &str, key: &K) -> Option<&V> {
        self.subscribers(filter)?.get(key)
    }

    /// Visits every subscription whose filter matches the valid topic `name`: a key once for each of its filters that
    /// match. Returns how many nodes it looked at.
    pub fn for_each_match(&self, name: &str, mut visit: impl FnMut(&K, &V)) -> usize {
        if let Some(subscribers) = self.exact.get(name) {
            subscribers.for_each(&mut visit);
        }
        self.tree
            .for_each_match(name, &mut |subscribers| subscribers.for_each(&mut visit))
    }

    fn subscribers(&self, filter: &str) -> Option<&Subscribers<K, V>> {
        if has_wildcard(filter) {
            self.tree.find(filter)
        } else {
            self.exact.get(filter)
        }
    }
}

/// Valid filters hold these characters as wildcards only.
pub(super) fn has_wildcard(filter: &str) -> bool {
    filter.bytes().any(|byte| byte == b'+' || byte == b'#')
}

/// Gives memory back once a table is mostly empty; amortized over the removals that emptied it.
fn give_back<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    const WORTH_IT: usize = 4096;
    if map.capacity() > WORTH_IT && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

impl<K: Ord + Clone, V> Tree<K, V> {
    fn new() -> Self {
        Tree {
            symbols: HashMap::default(),
            free_symbols: Vec::new(),
            edges: HashMap::default(),
            nodes: vec![Node::child_of(NONE)],
            free_nodes: Vec::new(),
        }
    }

    fn node(&self, index: NodeIndex) -> &Node<K, V> {
        &self.nodes[index as usize]
    }

    fn node_mut(&mut self, index: NodeIndex) -> &mut Node<K, V> {
        &mut self.nodes[index as usize]
    }

    /// The subscribers of a filter that may be new.
    fn slot(&mut self, filter: &str) -> &mut Subscribers<K, V> {
        let (levels, below) = take_apart(filter);
        let mut at = ROOT;
        for level in levels.into_iter().flat_map(|levels| levels.split('/')) {
            at = match self.child(at, level) {
                NONE => self.grow(at, level),
                child => child,
            };
        }
        let node = self.node_mut(at);
        let slot = if below {
            &mut node.below
        } else {
            &mut node.here
        };
        slot.get_or_insert_default()
    }

    fn find(&self, filter: &str) -> Option<&Subscribers<K, V>> {
        let (at, below) = self.locate(filter)?;
        let node = self.node(at);
        if below { &node.below } else { &node.here }.as_deref()
    }

    fn locate(&self, filter: &str) -> Option<(NodeIndex, bool)> {
        let (levels, below) = take_apart(filter);
        let mut at = ROOT;
        for level in levels.into_iter().flat_map(|levels| levels.split('/')) {
            at = self.child(at, level);
            if at == NONE {
                return None;
            }
        }
        Some((at, below))
    }

    fn remove(&mut self, filter: &str, key: &K) -> Option<V> {
        let (at, below) = self.locate(filter)?;
        let node = self.node_mut(at);
        let slot = if below {
            &mut node.below
        } else {
            &mut node.here
        };
        let subscribers = slot.as_deref_mut()?;
        let removed = subscribers.remove(key)?;
        if subscribers.is_empty() {
            *slot = None;
            let (levels, _) = take_apart(filter);
            self.prune(at, levels.unwrap_or_default());
        }
        Some(removed)
    }

    /// The child of `node` for a level of a filter, or [`NONE`].
    fn child(&self, node: NodeIndex, level: &str) -> NodeIndex {
        if level == "+" {
            return self.node(node).plus;
        }
        self.symbols
            .get(level)
            .and_then(|interned| self.edges.get(&(node, interned.symbol)))
            .copied()
            .unwrap_or(NONE)
    }

    fn grow(&mut self, parent: NodeIndex, level: &str) -> NodeIndex {
        let child = match self.free_nodes.pop() {
            Some(free) => {
                *self.node_mut(free) = Node::child_of(parent);
                free
            }
            None => {
                let next = number(self.nodes.len());
                self.nodes.push(Node::child_of(parent));
                next
            }
        };
        self.node_mut(parent).children += 1;
        if level == "+" {
            self.node_mut(parent).plus = child;
        } else {
            let symbol = self.intern(level);
            self.edges.insert((parent, symbol), child);
        }
        child
    }

    fn intern(&mut self, level: &str) -> Symbol {
        if let Some(interned) = self.symbols.get_mut(level) {
            interned.edges += 1;
            return interned.symbol;
        }
        // Symbols in use and free ones are all that were ever numbered.
        let symbol = match self.free_symbols.pop() {
            Some(free) => free,
            None => number(self.symbols.len()),
        };
        self.symbols
            .insert(level.into(), Interned { symbol, edges: 1 });
        symbol
    }

    /// Removes `node`, the end of `levels`, and its ancestors, as far as nothing hangs on them.
    fn prune(&mut self, mut node: NodeIndex, levels: &str) {
        for level in levels.rsplit('/') {
            let parent = self.node(node).parent;
            if node == ROOT || !self.node(node).is_bare() {
                return;
            }
            if level == "+" {
                self.node_mut(parent).plus = NONE;
            } else {
                self.release(parent, level);
            }
            self.node_mut(parent).children -= 1;
            self.free_nodes.push(node);
            node = parent;
        }
    }

    /// Removes the edge of `parent` with this name.
    fn release(&mut self, parent: NodeIndex, level: &str) {
        let Some(interned) = self.symbols.get_mut(level) else {
            return;
        };
        let symbol = interned.symbol;
        interned.edges -= 1;
        if interned.edges == 0 {
            self.symbols.remove(level);
            self.free_symbols.push(symbol);
            give_back(&mut self.symbols);
        }
        self.edges.remove(&(parent, symbol));
        give_back(&mut self.edges);
    }

    /// Visits the subscribers of every filter that matches. Returns how many nodes it looked at.
    fn for_each_match(&self, name: &str, visit: &mut impl FnMut(&Subscribers<K, V>)) -> usize {
        let mut looked_at = 0;
        if self.node(ROOT).is_bare() {
            return looked_at;
        }
        // A leading wildcard does not match a name that starts with $ `[MQTT-4.7.2-1]`.
        let is_reserved = name.starts_with('$');
        let mut levels = Levels::of(name);
        let mut open: SmallVec<[(NodeIndex, usize); 16]> = SmallVec::new();
        open.push((ROOT, 0));
        while let Some((index, depth)) = open.pop() {
            looked_at += 1;
            let node = self.node(index);
            let wildcards = index != ROOT || !is_reserved;
            if wildcards && let Some(subscribers) = &node.below {
                visit(subscribers);
            }
            let Some(symbol) = levels.symbol(depth, &self.symbols) else {
                if let Some(subscribers) = &node.here {
                    visit(subscribers);
                }
                continue;
            };
            if wildcards && node.plus != NONE {
                open.push((node.plus, depth + 1));
            }
            if symbol != NONE
                && let Some(child) = self.edges.get(&(index, symbol))
            {
                open.push((*child, depth + 1));
            }
        }
        looked_at
    }
}

/// The levels of a topic name as symbols, looked up when first needed: most names leave the tree early.
struct Levels<'n> {
    rest: Option<&'n str>,
    symbols: SmallVec<[Symbol; 16]>,
}

impl<'n> Levels<'n> {
    fn of(name: &'n str) -> Self {
        Levels {
            rest: Some(name),
            symbols: SmallVec::new(),
        }
    }

    /// The symbol of a level, [`NONE`] when it is in no filter; `None` when the name has no such level.
    fn symbol(&mut self, depth: usize, interned: &HashMap<Box<str>, Interned>) -> Option<Symbol> {
        while self.symbols.len() <= depth {
            let rest = self.rest?;
            let level = match rest.bytes().position(|byte| byte == b'/') {
                Some(end) => {
                    self.rest = Some(&rest[end + 1..]);
                    &rest[..end]
                }
                None => {
                    self.rest = None;
                    rest
                }
            };
            let symbol = interned.get(level).map_or(NONE, |found| found.symbol);
            self.symbols.push(symbol);
        }
        self.symbols.get(depth).copied()
    }
}

impl<K, V> Node<K, V> {
    fn child_of(parent: NodeIndex) -> Self {
        Node {
            parent,
            plus: NONE,
            children: 0,
            here: None,
            below: None,
        }
    }

    fn is_bare(&self) -> bool {
        self.children == 0 && self.here.is_none() && self.below.is_none()
    }
}

/// A filter's levels before a final `#`, and whether there is one. The filter `#` has no levels before it.
pub(super) fn take_apart(filter: &str) -> (Option<&str>, bool) {
    match filter.strip_suffix('#') {
        None => (Some(filter), false),
        Some("") => (None, true),
        Some(levels) => (Some(levels.strip_suffix('/').unwrap_or(levels)), true),
    }
}

/// The number of the next node or symbol.
fn number(count: usize) -> u32 {
    u32::try_from(count)
        .ok()
        .filter(|number| *number != NONE)
        .expect("2^32 levels of filters do not fit in memory")
}

#[cfg(test)]
#[path = "trie_tests.rs"]
mod tests;
