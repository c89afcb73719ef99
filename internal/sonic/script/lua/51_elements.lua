
-- Commands on elements, by the letter of the type: hash, set, sorted set.
local ELEMENTS = {
	h = {kind = 'hash', add = 'HSET', remove = 'HDEL', list = 'HKEYS', step = 2, at = 1},
	s = {kind = 'set', add = 'SADD', remove = 'SREM', list = 'SMEMBERS', step = 1, at = 1},
	z = {kind = 'zset', add = 'ZADD', remove = 'ZREM', list = 'ZRANGE', step = 2, at = 2}, -- score, member
}
local LETTERS = {hash = 'h', set = 's', zset = 'z'}

local function select_db(db)
	if c.selected ~= db then
		call('SELECT', db)
		c.selected = db
	end
end

-- try_db goes to db. It returns the error of a database that this Redis does not have: another zone's may have more.
local function try_db(db)
	if c.selected == db then return nil end
	local reply = try('SELECT', db)
	if failed(reply) then return reply end
	c.selected = db
end

local function kind_of(key) return call('TYPE', key).ok end

local function elements_of(key, letter)
	if letter == 'z' then return call('ZRANGE', key, '0', '-1') end
	return call(ELEMENTS[letter].list, key)
end

-- versions_of returns what is stored for elements list[first], list[first+step], ..: false for none.
local function versions_of(ver, db, key, list, first, step)
	local prefix = element_field(db, key, '')
	select_db('0')
	if #list < first + step then return {call('HGET', ver, prefix .. list[first])} end
	local fields, n = {}, 0
	for i = first, #list, step do
		n = n + 1
		fields[n] = prefix .. list[i]
	end
	return read_sliced(call, 'HMGET', ver, fields, 1, n)
end

-- set_expiry makes key expire at pxat, '' for never.
local function set_expiry(key, pxat)
	if pxat == '' then
		call('PERSIST', key)
	else
		call('PEXPIREAT', key, pxat)
	end
end
