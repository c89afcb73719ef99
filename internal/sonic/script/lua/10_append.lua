
-- Fields of the hash of versions. Their values are `id`, `@zone` unless the zone is this one, and,
-- after a space, what belongs to the kind of field.
local function key_field(db, key) return 'k' .. db .. ':' .. key end -- last wholesale write or deletion
local function type_field(db, key) return 't' .. db .. ':' .. key end -- newest element write; its type: h, s, z
local function expiry_field(db, key) return 'x' .. db .. ':' .. key end -- newest expiry; pxat, or nothing
local function element_field(db, key, element) -- newest write of an element; '-' when it was removed
	return 'e' .. db .. ':' .. DIGITS[#key] .. ':' .. key .. element
end

-- The transaction whose effects were appended last. Its closing entry is owed.
local open_tx

-- append adds one entry to the outbox: effects, which are packed arrays, one behind the other. It
-- returns the entry's id, which is the version of all of them. notes is a list of field, rest,
-- field, rest, .. of the hash of versions: each field becomes id .. rest.
--
-- State keys are in db 0: a script that works in another db goes there and back.
local function append(out, db, tx, effects, notes)
	if db ~= '0' then redis.call('SELECT', '0') end
	local id
	if tx then
		id = redis.call('XADD', out, '*', 'e', effects, 't', tx)
		open_tx = tx
	else
		id = redis.call('XADD', out, '*', 'e', effects)
	end
	if notes and not alone then
		local ver = state(out, 'ver')
		if #notes == 2 then
			redis.call('HSET', ver, notes[1], id .. notes[2])
		else
			for i = 2, #notes, 2 do notes[i] = id .. notes[i] end
			for i = 1, #notes, SLICE do
				redis.call('HSET', ver, unpack(notes, i, math.min(i + SLICE - 1, #notes)))
			end
		end
	end
	if db ~= '0' then redis.call('SELECT', db) end
	return id
end

-- Each of the following returns what a write under lww notes, nil under another policy.

-- wholesale_notes are those of a key set or deleted as a whole. They are added to notes, if given.
local function wholesale_notes(policy, db, key, pxat, notes)
	if policy ~= 'l' then return notes end
	notes = notes or {}
	local n = #notes
	notes[n + 1], notes[n + 2] = key_field(db, key), ''
	if pxat ~= '' then notes[n + 3], notes[n + 4] = expiry_field(db, key), ' ' .. pxat end
	return notes
end

-- expiry_notes are those of a change of a key's expiry; pxat is '' when the key keeps forever.
local function expiry_notes(policy, db, key, pxat, notes)
	if policy ~= 'l' then return notes end
	notes = notes or {}
	local n = #notes
	notes[n + 1], notes[n + 2] = expiry_field(db, key), pxat == '' and '' or ' ' .. pxat
	return notes
end

-- added_notes are those of elements list[first], list[first+step], .. of a key of type kind.
local function added_notes(policy, db, key, kind, list, first, last, step, notes)
	if policy ~= 'l' then return notes end
	notes = notes or {}
	local n, prefix = #notes, element_field(db, key, '')
	notes[n + 1], notes[n + 2] = type_field(db, key), ' ' .. kind
	n = n + 2
	for i = first, last, step do
		notes[n + 1], notes[n + 2] = prefix .. list[i], ''
		n = n + 2
	end
	return notes
end

-- removed_notes are those of removed elements. A removal says nothing about the key's type.
local function removed_notes(policy, db, key, list, first, last, notes)
	if policy ~= 'l' then return notes end
	notes = notes or {}
	local n, prefix = #notes, element_field(db, key, '')
	for i = first, last do
		notes[n + 1], notes[n + 2] = prefix .. list[i], ' -'
		n = n + 2
	end
	return notes
end
