//! What a document may hold. The numbers are those of the service whose clients are served.

/// Bytes of a key.
pub const KEY_BYTES: usize = 1024;

/// Bytes of a string.
pub const TEXT_BYTES: usize = 4096;

/// Arrays and objects that may be inside one another below a section: `tags.one.….ten` is the last object.
pub const DEPTH: usize = 10;

/// The least and the greatest integer: what a double holds exactly, halved.
pub const INTEGERS: std::ops::RangeInclusive<i64> = -4_503_599_627_370_496..=4_503_599_627_370_495;

/// The size of the tags ([`super::Section::size`]).
pub const TAGS_SIZE: u64 = 8 << 10;

/// The size of the desired, and of the reported properties.
pub const PROPERTIES_SIZE: u64 = 32 << 10;

/// Members in a section, at every depth. Empty keys, texts, arrays and objects have no size, and every member is work
/// for every node with every write of its section. Numbers alone, with the shortest names there are, make less than
/// half as many in [`PROPERTIES_SIZE`].
pub const SECTION_VALUES: u64 = 8_192;

/// Elements of the arrays in a section, at every depth, for the same reason. They are less work than members, and as
/// many as have a size at all fit in.
pub const SECTION_ELEMENTS: u64 = PROPERTIES_SIZE + 8_192;

/// Bytes of the keys and texts of a section. Control characters have no size, so without this bound a section could
/// grow for ever; one of [`PROPERTIES_SIZE`] characters of four bytes each is far from it.
pub const SECTION_TEXT_BYTES: u64 = 192 << 10;

/// Bytes of what an event says of a twin. One that would have more says that it is cut short, and no sections.
pub const EVENT_BYTES: usize = 256 << 10;

/// The same of what a device says of itself, while the outbox is more than half full. Otherwise reports, which are
/// smaller than what is told of them, could make everybody's events go.
pub const CROWDED_EVENT_BYTES: usize = 1 << 10;

/// Bytes of the body of a request.
pub const BODY_BYTES: usize = 256 << 10;

/// Whether a key may have this character: none that paths and queries give a meaning to.
pub fn may_be_in_key(character: char) -> bool {
    !character.is_control() && !character.is_whitespace() && !matches!(character, '.' | '$' | '#')
}

/// Whether a character counts in the size of a text: control characters do not.
pub fn counts(character: char) -> bool {
    !character.is_control()
}
