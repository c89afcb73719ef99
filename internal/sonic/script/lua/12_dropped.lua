
-- What effects that were dropped have changed. They are dropped while the outbox is full and writes go on
-- (`outbox.full: drop`). The hash `dropped` says what they changed, and its state is appended later: see sonic_resend.
-- The stream keeps the clock: its last id is that of the last effect.
--
-- Fields of the hash: "k<db>:<key>" of a key; "e<db>:<length of key>:<key><element>" to the letter of the type of an
-- element, a capital one once it was added: that says of which type the key is; "I<db>:<key>", and "i" or "j" with a
-- field or member as "e", to the sum of the changes of a counter.

do -- what is local here is of this block alone

-- Elements of effects: what is noted of each, where the first one is, how far the next one is from it.
local ELEMENTS_OF = {
	H = {'H', 6, 2}, A = {'S', 6, 1}, Z = {'Z', 7, 2}, h = {'h', 6, 1}, a = {'s', 6, 1}, z = {'z', 6, 1},
}

-- note notes in hash what the effect e changed. It returns how many effects are lost: 1 of those that cannot be noted.
local function note(hash, e)
	local op, name, elements = e[1], e[3] .. ':' .. e[4], ELEMENTS_OF[e[1]]
	local function element(kind, of) return kind .. e[3] .. ':' .. DIGITS[#e[4]] .. ':' .. e[4] .. of end
	if op == 'P' then return 1 end
	if op == 'I' then return failed(try('HINCRBY', hash, 'I' .. name, e[5])) and 1 or 0 end
	if op == 'i' or op == 'j' then
		local command = op == 'i' and 'HINCRBY' or 'HINCRBYFLOAT'
		return failed(try(command, hash, element(op, e[5]), e[6])) and 1 or 0
	end
	if not elements then
		call('HSET', hash, 'k' .. name, '')
	elseif call('HEXISTS', hash, 'k' .. name) == 0 then
		for i = elements[2], #e, elements[3] do
			local field, letter = element('e', e[i]), elements[1]
			local noted = call('HGET', hash, field) or letter
			local added = string.find(noted, '%u')
			if added and string.find(letter, '%u') and noted ~= letter then
				call('HSET', hash, 'k' .. name, '') -- one alone does not tell what both have wiped
				return 0
			end
			call('HSET', hash, field, added and noted or letter)
		end
	end
	return 0
end

-- lose counts effects that are lost.
function dropped.lose(out, n)
	if n > 0 then call('HINCRBY', state(out, 'meta'), 'lost', format('%d', n)) end
end

-- forget forgets what is noted of the keys of a flushed database: flushed[db] is the set of its keys that are left.
-- It returns how many notes that were. Sums of counters stay.
function dropped.forget(out, flushed)
	local hash, cursor, count = state(out, 'dropped'), '0', 0
	repeat
		local step = call('HSCAN', hash, cursor, 'COUNT', '1000')
		local fields, gone = step[2], {}
		cursor = step[1]
		for i = 1, #fields, 2 do
			local db, key = version.named(fields[i])
			if db and flushed[db] and not flushed[db][key] then gone[#gone + 1] = fields[i] end
		end
		if #gone > 0 then count = count + call('HDEL', hash, unpack(gone)) end
	until cursor == '0'
	return count
end

-- add notes what an entry changed that is dropped. It returns the entry's id, false when there is nothing to note.
function dropped.add(out, db, effects, versions)
	local op = first_op(effects)
	if not op or op == '_' then return false end -- the end of a transaction that was dropped; beats can wait
	if db ~= '0' then call('SELECT', '0') end
	local id, hash, offset, lost = next_id(#effects), state(out, 'dropped'), 0, 0
	while offset >= 0 and offset < #effects do
		local list = {cmsgpack.unpack_limit(effects, 100, offset)}
		offset = list[1]
		for i = 2, #list do lost = lost + note(hash, list[i]) end
	end
	dropped.lose(out, lost)
	call('XSETID', out, id)
	c.last_id = id
	if versions then store_versions(out, id, versions) end
	if db ~= '0' then call('SELECT', db) end
	return id
end

end
