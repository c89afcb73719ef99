-- Fields of the hash of versions. Their values are `id`, `@zone` unless the zone is this one, and,
-- after a space, what belongs to the kind of field.
local function key_field(db, key) return 'k' .. db .. ':' .. key end -- last wholesale write or deletion
local function type_field(db, key) return 't' .. db .. ':' .. key end -- newest element write; its type: h, s, z
local function expiry_field(db, key) return 'x' .. db .. ':' .. key end -- newest expiry; pxat, or nothing
local function element_field(db, key, element) -- newest write of an element; '-' when it was removed
	return 'e' .. db .. ':' .. #key .. ':' .. key .. element
end

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
	else
		id = redis.call('XADD', out, '*', 'e', effects)
	end
	if notes and not alone then
		for i = 2, #notes, 2 do notes[i] = id .. notes[i] end
		local ver = state(out, 'ver')
		for i = 1, #notes, SLICE do
			redis.call('HSET', ver, unpack(notes, i, math.min(i + SLICE - 1, #notes)))
		end
	end
	if db ~= '0' then redis.call('SELECT', db) end
	return id
end
