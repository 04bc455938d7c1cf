//! Requests between coordinator and participants, and their answers, as bytes.
//!
//! ```text
//! READ           u32 table | u32 0           | u16 0         | u16 0 | u64 key     | u64 owner | row key
//! LOCK           u32 table | u32 value bytes | u16 mode, and what it passes | u16 0 | u64 key | u64 owner | row key
//! VALIDATE       u32 table | u32 bucket      | u16 partition | u16 0 | u64 version | u64 owner
//! VALIDATE_MANY  u32 table | u32 0           | u16 partition | u16 0 | u64 0       | u64 owner
//!                then for each bucket: u32 bucket | u64 version
//! VALIDATE_ROWS  u32 table | u32 0           | u16 partition | u16 0 | u64 0       | u64 owner
//!                then for each row: u32 bucket | u64 version | u64 hash, 0 = all rows of the bucket
//! VALIDATE_RANGE u32 table | u32 0           | u16 partition | u16 0 | u64 shape   | u64 owner
//!                then u64 number | from | to
//! UNLOCK         u32 table | u32 bucket      | u16 partition | u16 0 | u64 key     | u64 owner | row key
//! SCAN           u32 table | u32 rows        | u16 partition | u16 0 | u64 shape   | u64 owner | from | to
//! COUNT          u32 table | u32 0           | u16 partition | u16 0 | u64 shape   | u64 owner | from | to
//! FOLD           u32 table | u32 bucket      | u16 partition | u16 0 | u64 0       | u64 owner | program
//! VALIDATE_SPAN  u32 table | u32 bucket      | u16 partition | u16 0 | u64 changes | u64 owner | u32 next bucket
//! COPY           u32 table | u32 bucket      | u16 partition | u16 0 | u64 offset  | u64 owner
//! RESERVE        u32 table | u32 hold, ms    | u16 waits     | u16 0 | u64 hash    | u64 holder | row key
//! SHARE          u32 table | u32 hold, ms    | u16 waits     | u16 0 | u64 shape   | u64 holder | from | to
//! RELEASE_ROW    u32 table | u32 0           | u16 0         | u16 0 | u64 hash    | u64 holder
//! RELEASE_SHARED, WAITS_FOR
//!                u32 0     | u32 0           | u16 0         | u16 0 | u64 0       | u64 holder
//! EXPECT         u32 table | u32 rows        | u16 partition | u16 0 | u64 0       | u64 owner
//! SET_BARRIER, RELEASE_BARRIER
//!                u32 table | u32 0           | u16 partition | u16 0 | u64 0       | u64 owner
//! BEGIN_LOAD, LOAD, END_LOAD
//!                u32 table | u32 role        | u16 partition | u16 0 | u64 placement | u64 owner
//!                then for each row of a LOAD: u32 value bytes | u16 key bytes | key | value
//! LOG            a commit record           BACKUP, PRIMARY   a unit
//! LOG_PART       u32 epoch | u16 node | u16 worker | u64 counter | u64 coroutine
//!                u32 bytes of the record | u32 offset of the part | part of a commit record
//!
//! answer to READ and LOCK, where it has one: u64 version | value
//! answer to SCAN: see `scan_page.rs`; to COPY, COUNT, FOLD, LOAD, RESERVE and WAITS_FOR: see `answer.rs`
//! ```
//! The row key is that of a heap table, whose hash is the key; a fixed table has none. A LOCK in a heap
//! table is answered without the value.
//!
//! *Source*: FaSST section 5, figure 6.

use gannet_storage::{LockMode, Owner, Partitioning, RecordPart, TransactionId};

use crate::holder::Passes;

pub(crate) const READ: u16 = 1;
pub(crate) const LOCK: u16 = 2;
pub(crate) const VALIDATE: u16 = 3;
pub(crate) const LOG: u16 = 4;
pub(crate) const BACKUP: u16 = 5;
pub(crate) const PRIMARY: u16 = 6;
pub(crate) const UNLOCK: u16 = 7;
pub(crate) const VALIDATE_RANGE: u16 = 8;
pub(crate) const SCAN: u16 = 9;
pub(crate) const LOG_PART: u16 = 10;
pub(crate) const VALIDATE_MANY: u16 = 11;
pub(crate) const SET_BARRIER: u16 = 12;
pub(crate) const RELEASE_BARRIER: u16 = 13;
pub(crate) const COPY: u16 = 14;
pub(crate) const EXPECT: u16 = 15;
pub(crate) const VALIDATE_ROWS: u16 = 16;
pub(crate) const RESERVE: u16 = 17;
pub(crate) const RELEASE_ROW: u16 = 18;
pub(crate) const WAITS_FOR: u16 = 19;
pub(crate) const COUNT: u16 = 20;
pub(crate) const FOLD: u16 = 21;
pub(crate) const VALIDATE_SPAN: u16 = 22;
pub(crate) const SHARE: u16 = 23;
pub(crate) const RELEASE_SHARED: u16 = 24;
pub(crate) const BEGIN_LOAD: u16 = 25;
pub(crate) const LOAD: u16 = 26;
pub(crate) const END_LOAD: u16 = 27;

/// Modes of LOCK.
const UPDATE: u16 = 1;
const INSERT: u16 = 2;
const DELETE: u16 = 3;
/// Beside the mode: what it passes.
const PASSES: u16 = 3 << 8;

/// Bytes of a request's fixed part.
pub(crate) const HEADER_BYTES: usize = 28;
/// Role of the copy that a LOAD is sent to first.
pub(crate) const COUNTS_MEMORY: u32 = 1;
/// Bytes of a row in a LOAD before its key.
const LOADED_ROW_BYTES: usize = 6;
/// Bytes of a bucket in a VALIDATE_MANY.
const BUCKET_VERSION_BYTES: usize = 12;
/// Bytes of a row in a VALIDATE_ROWS.
const ROW_VERSION_BYTES: usize = 20;
/// Buckets of one VALIDATE_MANY and rows of one VALIDATE_ROWS, so that it holds up no other transaction.
pub(crate) const VALIDATED_MAX: usize = 1_000;
/// Rows of the LOADs that are sent together, so that they hold up no other transaction.
pub(crate) const LOADED_ROWS_MAX: usize = 512;
/// The same in bytes, but for a single row.
pub(crate) const LOADED_BYTES_MAX: usize = 64 << 10;
/// Bytes before the value in an answer to READ or LOCK.
pub(crate) const VERSION_BYTES: usize = 8;
/// Bytes of responses to one message beyond which no further row is added to it; another row and the
/// answers `Postponed` to the other requests find room in the largest message.
pub(crate) const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Largest part of a record that is sent at once, so that a large one holds up no other transaction.
pub(crate) const PART_BYTES_MAX: usize = 256 << 10;

/// What a participant answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Status {
    /// LOG, LOG_PART, BACKUP, PRIMARY, UNLOCK, SET_BARRIER, RELEASE_BARRIER: done, now or before. VALIDATE: unchanged, all of them.
    /// EXPECT: there are buckets enough. BEGIN_LOAD, LOAD, END_LOAD: done.
    Done = 1,
    /// READ: found, with version and value.
    Found = 2,
    /// READ, LOCK for update or delete: no such key, with version.
    Absent = 3,
    /// LOCK: granted, with version, and value for update and delete.
    Granted = 4,
    /// LOCK for insert: the key is there, with version and value. LOAD: the key of a row is there, with the number of rows before it.
    Exists = 5,
    /// READ, LOCK, SCAN, FOLD, VALIDATE: another transaction holds the bucket. VALIDATE_RANGE, COUNT: another is about to add or remove a key. RESERVE:
    /// another holds the row, or reads it. SHARE: another holds a row of the range. LOAD: memory is about to be given back, with the number of rows
    /// that are loaded.
    Locked = 6,
    /// VALIDATE: another version, a row that has changed, or keys that have come or gone. BEGIN_LOAD: the partition was used before. LOAD,
    /// END_LOAD: no such load. COPY: a bulk load has failed.
    Changed = 7,
    /// LOCK for insert, LOAD: no memory.
    Full = 8,
    /// BACKUP: an earlier update is missing at this copy. PRIMARY: the lock is.
    Gap = 9,
    /// The request names a table, partition or bucket that the node does not have, or is malformed.
    Refused = 10,
    /// READ, SCAN, FOLD: the response is full; send the request again.
    Postponed = 11,
    /// SCAN, COUNT, FOLD: there may be more rows in the range, or the partition, behind those of the answer.
    More = 12,
    /// LOCK: the partition has a scan barrier.
    Barrier = 13,
    /// READ, LOCK, SCAN, COUNT, FOLD, VALIDATE, SET_BARRIER, EXPECT, RESERVE: another node is primary of the partition, or is about to be.
    /// BEGIN_LOAD, LOAD, END_LOAD: copies have come or gone since the load began, or are being made.
    Moved = 14,
    /// EXPECT: buckets are split first.
    Crowded = 15,
    /// LOCK: another transaction has reserved the row.
    Reserved = 16,
    /// BACKUP, BEGIN_LOAD: a later configuration than that of the node has the table. BEGIN_LOAD, LOAD, END_LOAD: the placement is a later one. Send
    /// the request again.
    Early = 17,
}

impl Status {
    #[inline]
    pub(crate) fn from_wire(status: u16) -> Self {
        match status {
            1 => Self::Done,
            2 => Self::Found,
            3 => Self::Absent,
            4 => Self::Granted,
            5 => Self::Exists,
            6 => Self::Locked,
            7 => Self::Changed,
            8 => Self::Full,
            9 => Self::Gap,
            11 => Self::Postponed,
            12 => Self::More,
            13 => Self::Barrier,
            14 => Self::Moved,
            15 => Self::Crowded,
            16 => Self::Reserved,
            17 => Self::Early,
            _ => Self::Refused,
        }
    }
}

/// The fixed part of a request, from which each type below takes what it means by the fields.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    table: u32,
    number: u32,
    detail: u16,
    word: u64,
    owner: Owner,
}

/// A request about a table that begins with a [`Header`]; a key, bounds or buckets may follow.
pub(crate) trait TableRequest: Sized {
    fn header(&self) -> Header;

    /// `None` for values that mean nothing.
    fn from_header(header: Header) -> Option<Self>;

    #[inline(always)]
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let Header { table, number, detail, word, owner } = self.header();
        let first = u64::from(table) | u64::from(number) << 32;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..12].copy_from_slice(&u32::from(detail).to_le_bytes());
        bytes[12..20].copy_from_slice(&word.to_le_bytes());
        bytes[20..].copy_from_slice(&owner.0.to_le_bytes());
        bytes
    }

    /// The request, and what follows it.
    #[inline(always)]
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [t0, t1, t2, t3, n0, n1, n2, n3] = u64_at(bytes, 0).to_le_bytes();
        let header = Header {
            table: u32::from_le_bytes([t0, t1, t2, t3]),
            number: u32::from_le_bytes([n0, n1, n2, n3]),
            detail: u16::from_le_bytes([bytes[8], bytes[9]]),
            word: u64_at(bytes, 12),
            owner: Owner(u64_at(bytes, 20)),
        };
        Some((Self::from_header(header)?, rest))
    }
}

/// A type of request: what each of its fields is in the [`Header`].
macro_rules! table_request {
    ($(#[$doc:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $type:ty = $of_header:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            pub(crate) table: u32,
            $($(#[$note])* pub(crate) $field: $type,)+
            pub(crate) owner: Owner,
        }

        impl TableRequest for $name {
            #[inline(always)]
            fn header(&self) -> Header {
                let mut header =
                    Header { table: self.table, detail: 0, number: 0, word: 0, owner: self.owner };
                $(header.$of_header = self.$field;)+
                header
            }

            #[inline(always)]
            fn from_header(header: Header) -> Option<Self> {
                Some(Self { table: header.table, $($field: header.$of_header,)+ owner: header.owner })
            }
        }
    };
}

table_request! {
    /// READ: a key, whose bytes follow in a heap table.
    Read {
        /// Number or hash of the key.
        key: u64 = word,
    }
}

table_request! {
    /// VALIDATE: a bucket.
    Validate {
        partition: u16 = detail,
        bucket: u32 = number,
        version: u64 = word,
    }
}

table_request! {
    /// VALIDATE_RANGE: a range of the ordered index, whose number and bounds follow.
    ValidateRange {
        partition: u16 = detail,
        /// Kinds and lengths of the bounds: see `scan_page.rs`.
        shape: u64 = word,
    }
}

table_request! {
    /// VALIDATE_MANY and VALIDATE_ROWS: buckets or rows, which follow.
    ValidateMany {
        partition: u16 = detail,
    }
}

table_request! {
    /// UNLOCK: a bucket, and the key that was locked there, whose bytes follow in a heap table.
    Unlock {
        partition: u16 = detail,
        bucket: u32 = number,
        /// Number or hash of the key.
        key: u64 = word,
    }
}

table_request! {
    /// SCAN and COUNT: a range, whose bounds follow.
    Scan {
        partition: u16 = detail,
        /// Most rows of the answer.
        rows: u32 = number,
        /// Kinds and lengths of the bounds, and the direction: see `scan_page.rs`.
        shape: u64 = word,
    }
}

table_request! {
    /// COPY: buckets of a partition, from this one on.
    CopyBuckets {
        partition: u16 = detail,
        bucket: u32 = number,
        /// Of the first bucket's copy the bytes before this one are there.
        offset: u64 = word,
    }
}

table_request! {
    /// FOLD: buckets of a partition, from this one on; the program follows.
    FoldBuckets {
        partition: u16 = detail,
        bucket: u32 = number,
    }
}

table_request! {
    /// VALIDATE_SPAN: buckets that were folded, from this one on; the first that was not follows.
    ValidateSpan {
        partition: u16 = detail,
        bucket: u32 = number,
        /// The sum of their counts.
        changes: u64 = word,
    }
}

table_request! {
    /// SET_BARRIER and RELEASE_BARRIER: a partition.
    Barrier {
        partition: u16 = detail,
    }
}

table_request! {
    /// EXPECT: rows that a transaction is about to insert into a partition.
    Expect {
        partition: u16 = detail,
        rows: u32 = number,
    }
}

table_request! {
    /// BEGIN_LOAD, LOAD and END_LOAD: a partition; of a LOAD rows follow.
    Load {
        partition: u16 = detail,
        /// 1 for the copy that counts the memory of rows first, and may refuse them.
        role: u32 = number,
        /// The version of the placement in which the load has begun.
        placement: u64 = word,
    }
}

table_request! {
    /// RESERVE: a row, whose key follows.
    Reserve {
        /// Milliseconds for which it is held at most.
        hold_ms: u32 = number,
        /// 1 for a place in the queue, 2 for a row that others may read.
        waits: u16 = detail,
        hash: u64 = word,
    }
}

table_request! {
    /// SHARE: a range, whose bounds follow.
    Share {
        /// Milliseconds for which it is shared at most.
        hold_ms: u32 = number,
        /// 1 for a transaction that waits for the holders of rows.
        waits: u16 = detail,
        /// Kinds and lengths of the bounds: see `scan_page.rs`.
        shape: u64 = word,
    }
}

table_request! {
    /// RELEASE_ROW: a row that its holder has reserved.
    ReleaseRow {
        hash: u64 = word,
    }
}

/// RELEASE_SHARED and WAITS_FOR: a holder, and no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfHolder {
    pub(crate) owner: Owner,
}

impl TableRequest for OfHolder {
    fn header(&self) -> Header {
        Header { table: 0, number: 0, detail: 0, word: 0, owner: self.owner }
    }

    fn from_header(header: Header) -> Option<Self> {
        Some(Self { owner: header.owner })
    }
}

/// LOCK: a key, whose bytes follow in a heap table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRow {
    pub(crate) table: u32,
    pub(crate) mode: LockMode,
    pub(crate) passes: Passes,
    /// Bytes of the value that is to be written; 0 in a fixed table.
    pub(crate) value_bytes: u32,
    /// Number or hash of the key.
    pub(crate) key: u64,
    pub(crate) owner: Owner,
}

impl TableRequest for LockRow {
    #[inline(always)]
    fn header(&self) -> Header {
        let detail = match self.mode {
            LockMode::Update => UPDATE,
            LockMode::Insert => INSERT,
            LockMode::Delete => DELETE,
        };
        Header {
            table: self.table,
            detail: detail | self.passes as u16,
            number: self.value_bytes,
            word: self.key,
            owner: self.owner,
        }
    }

    #[inline(always)]
    fn from_header(header: Header) -> Option<Self> {
        let passes = Passes::from_wire(header.detail & PASSES)?;
        let mode = match header.detail & !PASSES {
            UPDATE => LockMode::Update,
            INSERT => LockMode::Insert,
            DELETE => LockMode::Delete,
            _ => return None,
        };
        let Header { table, number: value_bytes, word: key, owner, .. } = header;
        Some(Self { table, mode, passes, value_bytes, key, owner })
    }
}

/// The number of the table that a request is about, a unit included: what it begins with.
#[inline(always)]
pub(crate) fn table_of(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |number| u32::from_le_bytes(*number))
}

/// The partition that a request is about; none if it is about a transaction.
pub(crate) fn partition_of(kind: u16, payload: &[u8], partitioning: Partitioning) -> Option<u16> {
    match kind {
        LOG | LOG_PART | SHARE | RELEASE_SHARED | WAITS_FOR => None,
        READ => Read::decode(payload).map(|(read, _)| partitioning.partition(read.key)),
        RESERVE => Reserve::decode(payload).map(|(row, _)| partitioning.partition(row.hash)),
        LOCK => LockRow::decode(payload).map(|(lock, _)| partitioning.partition(lock.key)),
        // The others have it in the same place, units too.
        _ => payload.get(8..10)?.try_into().ok().map(u16::from_le_bytes),
    }
}

/// Adds a bucket to a VALIDATE_MANY.
pub(crate) fn push_bucket_version(bucket: u32, version: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; BUCKET_VERSION_BYTES];
    bytes[..4].copy_from_slice(&bucket.to_le_bytes());
    bytes[4..].copy_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// The buckets and versions of a VALIDATE_MANY, if they are whole.
pub(crate) fn bucket_versions(bytes: &[u8]) -> Option<impl Iterator<Item = (u32, u64)>> {
    let (buckets, []) = bytes.as_chunks::<BUCKET_VERSION_BYTES>() else { return None };
    Some(buckets.iter().map(|&[a, b, c, d, ref version @ ..]| {
        (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(*version))
    }))
}

/// Adds a row to a VALIDATE_ROWS.
pub(crate) fn push_row_version((bucket, version, hash): (u32, u64, u64), out: &mut Vec<u8>) {
    push_bucket_version(bucket, version, out);
    out.extend_from_slice(&hash.to_le_bytes());
}

/// The buckets, versions and hashes of a VALIDATE_ROWS, if they are whole.
pub(crate) fn row_versions(bytes: &[u8]) -> Option<impl Iterator<Item = (u32, u64, u64)>> {
    let (rows, []) = bytes.as_chunks::<ROW_VERSION_BYTES>() else { return None };
    Some(rows.iter().map(|row| {
        let [a, b, c, d, ..] = *row;
        (u32::from_le_bytes([a, b, c, d]), u64_at(row, 4), u64_at(row, 12))
    }))
}

/// A row of a LOAD.
pub(crate) type KeyAndValue<'b> = (&'b [u8], &'b [u8]);

/// Adds a row to a LOAD.
pub(crate) fn push_loaded_row(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let value_bytes = u32::try_from(value.len()).expect("values have at most 1 MiB");
    let key_bytes = u16::try_from(key.len()).expect("keys have at most 4,096 bytes");
    out.extend_from_slice(&value_bytes.to_le_bytes());
    out.extend_from_slice(&key_bytes.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// The first row of a LOAD, and the bytes of the others; none at the end, and none if the row is not whole.
pub(crate) fn next_loaded_row(bytes: &[u8]) -> Option<(KeyAndValue<'_>, &[u8])> {
    let (&[v0, v1, v2, v3, k0, k1], rest) = bytes.split_first_chunk::<LOADED_ROW_BYTES>()?;
    let value_bytes = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([k0, k1])))?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    Some(((key, value), rest))
}

/// Bytes before the part in a `LOG_PART`.
const PART_HEADER_BYTES: usize = 32;

/// Writes the request for a part to `out`, which is cleared.
pub(crate) fn encode_part(part: &RecordPart<'_>, out: &mut Vec<u8>) {
    let RecordPart { id, record_bytes, offset, bytes } = *part;
    let TransactionId { epoch, node, worker, coroutine, counter } = id;
    let length = |bytes: usize| u32::try_from(bytes).expect("a record is at most 64 MiB long");
    out.clear();
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&node.to_le_bytes());
    out.extend_from_slice(&worker.to_le_bytes());
    out.extend_from_slice(&counter.to_le_bytes());
    out.extend_from_slice(&u64::from(coroutine).to_le_bytes());
    out.extend_from_slice(&length(record_bytes).to_le_bytes());
    out.extend_from_slice(&length(offset).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The part in a request.
pub(crate) fn decode_part(bytes: &[u8]) -> Option<RecordPart<'_>> {
    let (header, bytes) = bytes.split_first_chunk::<PART_HEADER_BYTES>()?;
    let (names, sizes) = (u64_at(header, 0).to_le_bytes(), u64_at(header, 24).to_le_bytes());
    let [e0, e1, e2, e3, n0, n1, w0, w1] = names;
    let [r0, r1, r2, r3, o0, o1, o2, o3] = sizes;
    let id = TransactionId {
        epoch: u32::from_le_bytes([e0, e1, e2, e3]),
        node: u16::from_le_bytes([n0, n1]),
        worker: u16::from_le_bytes([w0, w1]),
        coroutine: u16::try_from(u64_at(header, 16)).ok()?,
        counter: u64_at(header, 8),
    };
    let record_bytes = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
    let offset = u32::from_le_bytes([o0, o1, o2, o3]) as usize;
    Some(RecordPart { id, record_bytes, offset, bytes })
}

/// The 8 bytes at `at`, which the caller knows to be there.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes"))
}

#[cfg(test)]
mod tests;
