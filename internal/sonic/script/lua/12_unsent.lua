
-- Effects that are dropped while the outbox is full and writes go on (`outbox.full: drop`). What such an effect
-- changed is noted in the hash `unsent`, and its state is shipped later: see sonic_resend. The stream keeps the
-- clock: its last id is that of the last effect.
--
-- Fields of the hash: "k<db>:<key>" of a key; "e<db>:<length of key>:<key><element>" to the letter of the type of an
-- element, a capital one once it was added: that says of which type the key is; "I<db>:<key>", and "i" or "j" with a
-- field or member as "e", to the sum of the changes of a counter.
unsent = {drops = false}

do -- what is local here is of this block alone

-- Elements of effects: what is noted of each, where the first one is, how far the next one is from it.
local ELEMENTS_OF = {
	H = {'H', 6, 2}, A = {'S', 6, 1}, Z = {'Z', 7, 2}, h = {'h', 6, 1}, a = {'s', 6, 1}, z = {'z', 6, 1},
}

-- each_effect calls take with each of packed effects, until it returns false.
local function each_effect(packed, take)
	local offset = 0
	while offset >= 0 and offset < #packed do
		local list = {cmsgpack.unpack_limit(packed, 100, offset)}
		offset = list[1]
		for i = 2, #list do
			if take(list[i]) == false then return end
		end
	end
end

function unsent.lose(out, n)
	if n > 0 then call('HINCRBY', state(out, 'meta'), 'lost', format('%d', n)) end
end

-- mark notes what packed effects changed. The script is in db 0.
function unsent.mark(out, packed)
	local hash, lost = state(out, 'unsent'), 0
	each_effect(packed, function(e)
		local op, name = e[1], e[3] .. ':' .. e[4]
		local function element(kind, of) return kind .. e[3] .. ':' .. DIGITS[#e[4]] .. ':' .. e[4] .. of end
		local elements = ELEMENTS_OF[op]
		if elements then
			if call('HEXISTS', hash, 'k' .. name) == 1 then return end
			for i = elements[2], #e, elements[3] do
				local field, says = element('e', e[i]), elements[1]
				local said = call('HGET', hash, field) or says
				local types = string.find(said, '%u') and string.find(says, '%u') and said ~= says
				if types then -- one alone does not tell what both have wiped
					call('HSET', hash, 'k' .. name, '')
					return
				end
				call('HSET', hash, field, string.find(said, '%u') and said or says)
			end
		elseif op == 'I' then
			if failed(try('HINCRBY', hash, 'I' .. name, e[5])) then lost = lost + 1 end
		elseif op == 'i' then
			if failed(try('HINCRBY', hash, element('i', e[5]), e[6])) then lost = lost + 1 end
		elseif op == 'j' then
			if failed(try('HINCRBYFLOAT', hash, element('j', e[5]), e[6])) then lost = lost + 1 end
		elseif op == 'P' then
			lost = lost + 1
		else
			call('HSET', hash, 'k' .. name, '')
		end
	end)
	unsent.lose(out, lost)
end

-- forget forgets what is noted of the keys of a flushed database: flushed[db] is the set of its keys that are left.
-- It returns how many notes that were. Sums of counters stay.
function unsent.forget(out, flushed)
	local hash, cursor, count = state(out, 'unsent'), '0', 0
	repeat
		local step = call('HSCAN', hash, cursor, 'COUNT', '1000')
		local fields, gone = step[2], {}
		cursor = step[1]
		for i = 1, #fields, 2 do
			local db, key = versions.named(fields[i])
			if db and flushed[db] and not flushed[db][key] then gone[#gone + 1] = fields[i] end
		end
		if #gone > 0 then count = count + call('HDEL', hash, unpack(gone)) end
	until cursor == '0'
	return count
end

-- op_of returns the first op of packed effects, '' when there are none.
local function op_of(packed)
	local op = ''
	each_effect(packed, function(e)
		op = e[1]
		return false
	end)
	return op
end

-- drop_entry drops an entry and notes what it changed. It returns the entry's id, false when there is nothing to
-- note.
local function drop_entry(out, db, effects, notes)
	local op = op_of(effects)
	if op == '_' or op == '' then return false end -- beats can wait; the end of a transaction that was dropped
	if db ~= '0' then call('SELECT', '0') end
	local id = next_id(#effects)
	unsent.mark(out, effects)
	call('XSETID', out, id)
	c.last_id = id
	if notes then note_versions(out, id, notes) end
	if db ~= '0' then call('SELECT', db) end
	return id
end

-- drop makes effects be dropped from now on, or not.
function unsent.drop(drops)
	unsent.drops = drops
	c.divert = drops and drop_entry or nil
end

end
