//! Rows of a scan: keys and values in one buffer, without an allocation for each row.
//!
//! *Invariants*: a value lies directly behind its key. The order of the rows is that of their spans, not of the buffer.
//!
//! *Not here*: how rows are read and validated, in `transaction/scan.rs`.

use std::cmp::Ordering;

/// A key and its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Where a row lies in the buffer: its key, and behind it its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSpan {
    pub(crate) at: usize,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
}

/// Keys and values in some order.
#[derive(Clone, Default)]
pub struct Rows {
    bytes: Vec<u8>,
    spans: Vec<RowSpan>,
}

impl Rows {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The row with a number, from 0.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<(&[u8], &[u8])> {
        self.spans.get(number).map(|span| self.row(span))
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| self.row(span))
    }

    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        self.spans.last().map(|span| self.key(span))
    }

    pub(crate) fn truncate(&mut self, rows: usize) {
        self.spans.truncate(rows);
    }

    /// Adds bytes in which rows lie that [`Self::push`] adds; where they begin.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        at
    }

    /// Adds a row whose bytes are in the buffer.
    pub(crate) fn push(&mut self, span: RowSpan) {
        self.spans.push(span);
    }

    pub(crate) fn reserve(&mut self, rows: usize) {
        self.spans.reserve(rows);
    }

    /// The key of a row whose bytes are in the buffer.
    #[inline]
    pub(crate) fn key(&self, span: &RowSpan) -> &[u8] {
        &self.bytes[span.at..][..span.key_bytes as usize]
    }

    #[inline]
    fn row(&self, span: &RowSpan) -> (&[u8], &[u8]) {
        let bytes = &self.bytes[span.at..][..(span.key_bytes + span.value_bytes) as usize];
        bytes.split_at(span.key_bytes as usize)
    }

    /// Sorts by keys; what is in order in parts already is merged.
    pub(crate) fn sort_by(&mut self, order: impl Fn(&[u8], &[u8]) -> Ordering) {
        let Self { bytes, spans } = self;
        let key = |span: &RowSpan| &bytes[span.at..][..span.key_bytes as usize];
        spans.sort_by(|a, b| order(key(a), key(b)));
    }
}

/// A copy of each row.
impl IntoIterator for Rows {
    type Item = KeyValue;
    type IntoIter = std::vec::IntoIter<KeyValue>;

    fn into_iter(self) -> Self::IntoIter {
        let copies: Vec<_> =
            self.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        copies.into_iter()
    }
}

impl FromIterator<KeyValue> for Rows {
    fn from_iter<I: IntoIterator<Item = KeyValue>>(rows: I) -> Self {
        let mut all = Self::default();
        for (key, value) in rows {
            let at = all.add_bytes(&key);
            all.add_bytes(&value);
            let bytes =
                |part: &[u8]| u32::try_from(part.len()).expect("a value is at most 1 MiB long");
            all.push(RowSpan { at, key_bytes: bytes(&key), value_bytes: bytes(&value) });
        }
        all
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Rows {}

impl std::fmt::Debug for Rows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_they_were_made_of() {
        let row = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
        let mut rows: Rows = [row("b", "two"), row("a", ""), row("", "none")].into_iter().collect();
        assert_eq!(rows.get(0), Some((&b"b"[..], &b"two"[..])));
        assert_eq!((rows.len(), rows.get(3)), (3, None));
        rows.sort_by(<[u8]>::cmp);
        assert_eq!(rows.last_key(), Some(&b"b"[..]));
        let sorted: Vec<_> = rows.clone().into_iter().collect();
        assert_eq!(sorted, [row("", "none"), row("a", ""), row("b", "two")]);
        assert_eq!(rows, sorted.into_iter().collect());
        rows.truncate(1);
        assert_eq!(format!("{rows:?}"), format!("{:?}", [(b"", b"none")]));
    }
}
